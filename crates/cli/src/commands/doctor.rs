//! `tallow doctor`: devices, what a model would take, and where each setting comes from.

use std::fmt::Write;
use std::time::{Duration, Instant};

use tallow_core::conformance::{self, Suite};
use tallow_models::AnyModel;
use tallow_text::generation::Generation;

use super::print;
use crate::args::Doctor;
use crate::devices::{
    Arithmetic, CpuOptions, CpuSpeeds, Device, Hardware, Isa, Memory, Task, candidates, cores, cpu_name,
};
use crate::memory::{Plan, Seq2SeqLimits, size};
use crate::model_name::short_name;
use crate::settings::{Defaults, EngineConfig, Flags, KNOWN, Known, Sources, resolve};
use crate::terminal::counted;
use crate::{Failed, build, env, hub, load, terminal};

pub(crate) fn doctor(args: Doctor, sources: &Sources) -> Result<(), Failed> {
    if args.reference {
        return print(&super::reference::reference());
    }
    let mut text = String::new();
    machine(&mut text);
    speed(&mut text)?;
    if !args.report {
        cache(&mut text, sources, args.engine.offline)?;
    }
    let (devices, refused) = Device::all();
    for device in &devices {
        text += &describe(device, &devices, args.report);
    }
    for (kind, why) in refused {
        let _ = writeln!(text, "\n{kind}\n  cannot be used: {why}");
    }
    if args.report {
        return print(&terminal::sanitized(&format!("```\n{text}```\n")));
    }
    let loaded = match &args.model {
        Some(name) => {
            let how = load::OpenOptions::new(sources, args.engine.offline, args.engine.quant)?;
            match load::any(name, how)? {
                AnyModel::Decoder(model) => {
                    Some(load::decoder(name, *model)?.with_draft(sources, args.engine.draft.clone(), how)?)
                }
                AnyModel::Encoder(model) => {
                    let config = config(&args, sources, &Generation::default())?;
                    let plan = |device: &Device| Plan::of_encoder(&model, config.batch.value, device);
                    return of_one_use(text, name, &config, plan);
                }
                AnyModel::Seq2Seq(model) => {
                    let config = config(&args, sources, &model.generation()?)?;
                    let limits = Seq2SeqLimits::of(&model, 1, config.kv.value.0, config.batch.value);
                    return of_one_use(text, name, &config, |device| {
                        Plan::of_seq2seq(&model, limits, device)
                    });
                }
            }
        }
        None => None,
    };
    let generation = loaded.as_ref().map_or_else(Generation::default, |o| o.generation.clone());
    let config = config(&args, sources, &generation)?;
    let mut rows = config.rows();
    let mut verdict = Ok(());
    if let Some(loaded) = &loaded {
        let model = loaded.used(&config);
        let plan = |device: &Device| Plan::new(&model, loaded.draft(&config), &config, device);
        let (lines, found) = planned(&loaded.name, &config, plan)?;
        text += &lines;
        for note in loaded.model.quantizing_notes() {
            let _ = writeln!(text, "  {note}");
        }
        if let Err(why) = loaded.text_codec() {
            let _ = writeln!(text, "  it cannot read or write text here: {why}");
        }
        match found {
            Ok(plan) => {
                rows.retain(|(name, ..)| *name != "context");
                rows.insert(0, ("context", plan.context.value.to_string(), plan.context.origin.to_string()));
            }
            Err(why) => verdict = Err(why),
        }
    }
    let file = sources.described();
    let _ = writeln!(text, "\nsettings of `tallow run` (configuration file: {file})");
    for (name, value, origin) in rows {
        let _ = writeln!(text, "  {name:<20} {value:<28} {origin}");
    }
    text += "\nvariables that are set\n";
    for (name, value) in env::set(KNOWN.iter().map(Known::variable)) {
        let _ = writeln!(text, "  {name:<20} {value}");
    }
    print(&terminal::sanitized(&text))?;
    verdict
}

/// The settings that a model would run with.
fn config(args: &Doctor, sources: &Sources, generation: &Generation) -> Result<EngineConfig, Failed> {
    let (engine, sampling) = (args.engine.clone(), args.sampling.clone());
    resolve(sources, &Flags { engine, sampling, ..Flags::default() }, generation, Defaults::CHAT)
}

/// Memory that a model would take on each device, and the plan for the first device with room; or why none has.
fn planned(
    name: &str,
    config: &EngineConfig,
    plan: impl Fn(&Device) -> Plan,
) -> Result<(String, Result<Plan, Failed>), Failed> {
    let (devices, _) = candidates(config.device.value)?;
    let mut text = format!("\n{name} would take\n");
    let mut found = Err(Failed::new("there is no device"));
    for plan in devices.iter().map(plan) {
        let checked = plan.check();
        let verdict = match &checked {
            Ok(()) => String::new(),
            Err(_) if plan.fits() => format!("; the model was made for {} tokens", plan.made_for),
            Err(_) => "; that does not fit".to_owned(),
        };
        let _ = writeln!(text, "  {plan}{verdict}");
        if found.is_err() {
            found = checked.map(|()| plan);
        }
    }
    Ok((text, found))
}

/// Report on a model without settings of its own: an encoder, or a seq2seq model for one input at a time.
fn of_one_use(
    text: String,
    name: &str,
    config: &EngineConfig,
    plan: impl Fn(&Device) -> Plan,
) -> Result<(), Failed> {
    let (lines, found) = planned(&short_name(name), config, plan)?;
    print(&terminal::sanitized(&(text + &lines)))?;
    found.map(drop)
}

/// A device of `all`, its properties, and a conformance test of its ops: the full one if `whole`, else a brief one on hardware
/// only.
fn describe(device: &Device, all: &[Device], whole: bool) -> String {
    let mut text = format!("\n{device}\n");
    let info = device.info();
    let memory = info.memory().map(|m| ("memory", format!("{} of {} free", size(m.free), size(m.total))));
    let same = device.others_of(all).map(|other| ("same as", format!("{other}, reached another way")));
    for (what, value) in info.facts().into_iter().chain(memory).chain(same) {
        let _ = writeln!(text, "  {what:<12} {value}");
    }
    let suite = match whole {
        true => Suite::exact(),
        false if info.traits().accelerator => Suite::exact().brief(),
        false => return text,
    };
    let begun = Instant::now();
    let bar = terminal::slow_bar();
    // An op may take a minute; without ticks the bar would still show the one before.
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut progress = |done, all, op: &str| {
        bar.set_length(all as u64);
        let name = device.to_string();
        // `vulkan:0`, without the vendor's name for it: the line has to fit.
        let name = terminal::sanitized(name.split(' ').next().unwrap_or_default()).into_owned();
        bar.set_message(format!("testing {name}: {op}"));
        bar.set_position(done as u64);
    };
    let tested = device.run(Conformance { suite, progress: &mut progress });
    bar.finish_and_clear();
    match tested {
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

/// Runs the conformance suite.
struct Conformance<'a> {
    suite: Suite,
    /// Called before each op with the number of ops done, their total, and the op's name.
    progress: &'a mut dyn FnMut(usize, usize, &'static str),
}

impl Task for Conformance<'_> {
    /// Each op's result.
    type Output = Vec<(&'static str, Result<(), String>)>;

    fn run<H: Hardware>(self, device: H) -> Result<Self::Output, Failed> {
        let b = device.open(CpuOptions::best(Arithmetic::Exact))?;
        Ok(conformance::run_with_progress(&b, self.suite, self.progress))
    }
}

/// The program, the CPU and the memory.
pub(super) fn machine(text: &mut String) {
    let _ =
        writeln!(text, "tallow {} on {} {}", build::VERSION, std::env::consts::OS, std::env::consts::ARCH);
    let sets: Vec<String> =
        Isa::ALL.iter().filter(|isa| isa.is_available()).map(ToString::to_string).collect();
    let _ =
        writeln!(text, "cpu        {}, {} threads, instructions: {}", cpu_name(), cores(), sets.join(", "));
    match Memory::now() {
        Some(m) => drop(writeln!(text, "memory     {} of {} free", size(m.free), size(m.total))),
        None => drop(writeln!(text, "memory     unknown: this system does not say")),
    }
}

fn speed(text: &mut String) -> Result<(), Failed> {
    let CpuSpeeds { f32: plain, int8 } = CpuSpeeds::measure()?;
    let (read, flops, bytes) = (plain.read / 1e9, plain.flops / 1e9, int8 / 1e9);
    let best = Isa::best();
    let _ = writeln!(
        text,
        "speed      reads {read:.1} GB/s, computes {flops:.0} GFLOP/s, on bytes {bytes:.0} GOP/s ({best})"
    );
    Ok(())
}

fn cache(text: &mut String, sources: &Sources, offline: bool) -> Result<(), Failed> {
    let Some(folder) = env::hub_cache() else {
        text.push_str("models     nowhere to keep them: set HOME or HF_HUB_CACHE\n");
        return Ok(());
    };
    let models = hub::cache()?.list();
    let what = match &models {
        Ok(models) => {
            format!("{}, {}", counted(models.len(), "model"), size(models.iter().map(|m| m.bytes).sum()))
        }
        Err(why) => why.to_string(),
    };
    let _ = writeln!(text, "models     {}: {what}", folder.display());
    let endpoint = env::get("HF_ENDPOINT").unwrap_or_else(|| tallow_hub::Settings::default().endpoint);
    let token = if env::hub_token().is_some() { "with a token" } else { "without a token" };
    match hub::offline(sources, offline)? {
        Some(why) => drop(writeln!(text, "hub        not to be asked: {why}")),
        None => drop(writeln!(text, "hub        {endpoint}, {token}")),
    }
    Ok(())
}
