//! `tallow doctor`: what there is, and where each setting comes from.

use std::fmt::Write;

use tallow_cpu::{Cpu, Isa};
use tallow_models::generation::Generation;

use super::print;
use crate::args::Doctor;
use crate::memory::{Memory, Plan, size};
use crate::settings::{Defaults, Flags, Sources, cores, resolve};
use crate::{Failed, env, load, screen};

pub(crate) fn doctor(args: Doctor, sources: &Sources) -> Result<(), Failed> {
    if args.reference {
        return print(&super::reference::reference());
    }
    let mut text = String::new();
    machine(&mut text);
    cache(&mut text, sources, args.engine.offline)?;
    let opened = match &args.model {
        Some(name) => Some(load::open(name, load::is_offline(sources, args.engine.offline)?)?),
        None => None,
    };
    let generation = opened.as_ref().map_or_else(Generation::default, |o| o.generation.clone());
    let flags = Flags { engine: args.engine, sampling: args.sampling, ..Flags::default() };
    let config = resolve(sources, &flags, &generation, Defaults::CHAT)?;
    let mut rows = config.rows();
    if let Some(opened) = &opened {
        let plan = Plan::new(&opened.model, &config);
        text += &format!("\n{} would take\n  {plan}\n", opened.name);
        if plan.check().is_err() {
            text += "  that does not fit\n";
        }
        rows.retain(|(name, ..)| *name != "context");
        rows.insert(0, ("context", plan.context.value.to_string(), plan.context.origin.to_string()));
    }
    let file = sources.file().map_or("none".to_owned(), |p| p.display().to_string());
    let _ = writeln!(text, "\nsettings of `tallow run` (configuration file: {file})");
    for (name, value, origin) in rows {
        let _ = writeln!(text, "  {name:<20} {value:<28} {origin}");
    }
    text += "\nvariables that are set\n";
    for (name, value) in env::set() {
        let _ = writeln!(text, "  {name:<20} {value}");
    }
    print(&screen::harmless(&text))
}

fn machine(text: &mut String) {
    let _ = writeln!(
        text,
        "tallow {} on {} {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    let best = Isa::best();
    let sets: Vec<String> =
        Isa::ALL.iter().filter(|isa| isa.is_available()).map(ToString::to_string).collect();
    let _ =
        writeln!(text, "cpu        {}, {} threads, instructions: {}", cpu_name(), cores(), sets.join(", "));
    match Memory::now() {
        Some(m) => drop(writeln!(text, "memory     {} of {} free", size(m.free), size(m.total))),
        None => drop(writeln!(text, "memory     unknown: this system does not say")),
    }
    if let Ok(b) = Cpu::new(best, cores()) {
        let memory = vec![1.0_f32; crate::commands::bench::PROBED / size_of::<f32>()];
        let (read, flops) = (b.read_speed(&memory), b.multiply_speed());
        let _ = writeln!(
            text,
            "speed      reads {:.1} GB/s, computes {:.0} GFLOP/s ({best})",
            read / 1e9,
            flops / 1e9
        );
    }
    text.push_str("devices    cpu\n");
}

/// What the CPU calls itself.
pub(crate) fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH.into(), |(_, name)| name.trim().to_owned())
}

fn cache(text: &mut String, sources: &Sources, offline: bool) -> Result<(), Failed> {
    let Some(folder) = env::hub_cache() else {
        text.push_str("models     nowhere to keep them: set HOME or HF_HUB_CACHE\n");
        return Ok(());
    };
    let models = load::cache()?.list();
    let what = match &models {
        Ok(models) => format!("{} models, {}", models.len(), size(models.iter().map(|m| m.bytes).sum())),
        Err(why) => why.to_string(),
    };
    let _ = writeln!(text, "models     {}: {what}", folder.display());
    let endpoint = env::get("HF_ENDPOINT").unwrap_or_else(|| tallow_hub::Settings::default().endpoint);
    let token = if env::hub_token().is_some() { "with a token" } else { "without a token" };
    match load::is_offline(sources, offline)? {
        true => text.push_str("hub        not to be asked (offline)\n"),
        false => drop(writeln!(text, "hub        {endpoint}, {token}")),
    }
    Ok(())
}
