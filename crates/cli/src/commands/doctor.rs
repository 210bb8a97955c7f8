//! `tallow doctor`: what there is, and where each setting comes from.

use std::fmt::Write;
use std::time::Instant;

use tallow_core::conformance::Suite;
use tallow_cpu::{Cpu, Isa};
use tallow_engine::scribe::Desk;
use tallow_models::AnyModel;
use tallow_models::generation::Generation;
use tallow_models::scribe::ScribeModel;

use super::{counted, print};
use crate::args::Doctor;
use crate::device::{Device, Measured, Speeds, all, candidates};
use crate::memory::{Memory, Plan, size};
use crate::settings::{Defaults, Flags, Sources, cores, resolve};
use crate::{Failed, env, load, screen};

pub(crate) fn doctor(args: Doctor, sources: &Sources) -> Result<(), Failed> {
    if args.reference {
        return print(&super::reference::reference());
    }
    let mut text = String::new();
    machine(&mut text)?;
    if !args.report {
        cache(&mut text, sources, args.engine.offline)?;
    }
    for device in all() {
        text += &describe(&device, args.report);
    }
    if args.report {
        return print(&screen::harmless(&format!("```\n{text}```\n")));
    }
    let opened = match &args.model {
        Some(name) => {
            let how = load::How::new(sources, args.engine.offline, args.engine.quant)?;
            if let AnyModel::Scribe(model) = load::any(name, how)? {
                return of_scribe(text, name, &model, &args, sources);
            }
            Some(load::open(name, how)?)
        }
        None => None,
    };
    if let Some(opened) = &opened {
        opened.words()?;
    }
    let generation = opened.as_ref().map_or_else(Generation::default, |o| o.generation.clone());
    let flags = Flags { engine: args.engine, sampling: args.sampling, ..Flags::default() };
    let config = resolve(sources, &flags, &generation, Defaults::CHAT)?;
    let mut rows = config.rows();
    if let Some(opened) = &opened {
        let (devices, _) = candidates(config.device.value)?;
        let plans: Vec<Plan> =
            devices.iter().map(|device| Plan::new(&opened.model, &config, device)).collect();
        text += &format!("\n{} would take\n", opened.name);
        for plan in &plans {
            let room = if plan.check().is_ok() { "" } else { "; that does not fit" };
            text += &format!("  {plan}{room}\n");
        }
        let Some(plan) = plans.into_iter().find(|p| p.check().is_ok()) else {
            return Err(Failed::new(text + "There is no room for it on any device."));
        };
        rows.retain(|(name, ..)| *name != "context");
        rows.insert(0, ("context", plan.context.value.to_string(), plan.context.origin.to_string()));
    }
    let file = sources.described();
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

/// What a model takes that takes in all of something and then writes, for one at a time.
fn of_scribe(
    mut text: String,
    name: &str,
    model: &ScribeModel,
    args: &Doctor,
    sources: &Sources,
) -> Result<(), Failed> {
    let flags = Flags { engine: args.engine.clone(), sampling: args.sampling.clone(), ..Flags::default() };
    let config = resolve(sources, &flags, &model.generation()?, Defaults::CHAT)?;
    let (read, written) = (model.spec.encoder.context, model.spec.decoder.context);
    let desk = Desk { places: 1, read, written, dtype: config.kv.value.0, queue: 1 };
    text += &format!("\n{} would take\n", load::short_name(name));
    for device in candidates(config.device.value)?.0 {
        let plan = Plan::of_scribe(model, desk, &device);
        let room = if plan.check().is_ok() { "" } else { "; that does not fit" };
        text += &format!("  {plan}{room}\n");
    }
    print(&screen::harmless(&text))
}

/// A device and what it can do, with a test of its ops: of all of them and in every size if that is asked for, and on
/// hardware at least briefly.
fn describe(device: &Device, whole: bool) -> String {
    let mut text = format!("\n{device}\n");
    for (what, value) in device.facts() {
        let _ = writeln!(text, "  {what:<12} {value}");
    }
    let suite = match whole {
        true => Suite::exact(),
        false if device.is_hardware_of_its_own() => Suite::exact().brief(),
        false => return text,
    };
    let begun = Instant::now();
    match device.test(suite) {
        Err(why) => drop(writeln!(text, "  cannot be used: {why}")),
        Ok(outcomes) => {
            let wrong = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
            let (right, seconds) = (outcomes.len() - wrong, begun.elapsed().as_secs_f64());
            let _ = writeln!(text, "  {:<12} {right} ops right, {wrong} wrong, in {seconds:.1} s", "test");
            for (op, outcome) in outcomes {
                if let Err(why) = outcome {
                    let _ = writeln!(text, "  {op:<12} {why}");
                }
            }
        }
    }
    text
}

fn machine(text: &mut String) -> Result<(), Failed> {
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
    let b = Cpu::new(best, cores())?;
    let Speeds { read, flops } = b.speeds(&b.yardstick()?, false)?;
    let (read, flops, bytes) = (read / 1e9, flops / 1e9, b.multiply_speed(true) / 1e9);
    let _ = writeln!(
        text,
        "speed      reads {read:.1} GB/s, computes {flops:.0} GFLOP/s, on bytes {bytes:.0} GOP/s ({best})"
    );
    Ok(())
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
        Ok(models) => {
            format!("{}, {}", counted(models.len(), "model"), size(models.iter().map(|m| m.bytes).sum()))
        }
        Err(why) => why.to_string(),
    };
    let _ = writeln!(text, "models     {}: {what}", folder.display());
    let endpoint = env::get("HF_ENDPOINT").unwrap_or_else(|| tallow_hub::Settings::default().endpoint);
    let token = if env::hub_token().is_some() { "with a token" } else { "without a token" };
    match load::offline(sources, offline)? {
        Some(why) => drop(writeln!(text, "hub        not to be asked: {why}")),
        None => drop(writeln!(text, "hub        {endpoint}, {token}")),
    }
    Ok(())
}
