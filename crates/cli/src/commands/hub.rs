//! `tallow pull`, `tallow search`, `tallow list`, `tallow rm`: models of the hub and in the cache.

use std::io::{IsTerminal, Write};
use std::time::SystemTime;

use serde_json::json;
use tallow_hub::{ALIASES, Alias, CachedModel, Match, ModelRef};

use super::print;
use crate::Failed;
use crate::args::{List, Pull, Rm, Search};
use crate::hub::{cache, fetch, hub, named, offline};
use crate::memory::size;
use crate::model_name::DEMO;
use crate::settings::Sources;
use crate::terminal::{self, counted};

/// `tallow pull`
pub(crate) fn pull(args: &Pull, sources: &Sources) -> Result<(), Failed> {
    if args.model == DEMO {
        return print(
            "demo is part of the program: there is nothing to download; `tallow run demo` runs it\n",
        );
    }
    if let Some(why) = offline(sources, false)? {
        return Err(Failed::new(why.to_string()));
    }
    let snapshot = fetch(&ModelRef::parse(&args.model)?)?;
    print(&format!("{}\n", snapshot.path.display()))
}

/// `tallow list`
pub(crate) fn list(args: &List) -> Result<(), Failed> {
    if args.aliases {
        return print(&table(ALIASES.iter()));
    }
    let models = cache()?.list()?;
    if args.json {
        let seconds = |t: SystemTime| t.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let object = |m: &tallow_hub::CachedModel| {
            json!({
                "name": m.name, "quant": m.quant, "files": m.files, "bytes": m.bytes, "complete": m.complete,
                "modified": seconds(m.modified), "path": m.path,
            })
        };
        let all: Vec<_> = models.iter().map(object).collect();
        return print(&format!("{:#}\n", serde_json::Value::Array(all)));
    }
    if models.is_empty() {
        return print(
            "no models are downloaded; `tallow pull NAME` gets one, `tallow search TEXT` finds names\n",
        );
    }
    let width = models.iter().map(|m| m.name.chars().count()).max().unwrap_or(0).max(4);
    let mut text = format!("{:<width$}  {:>9}  {:>5}  {}\n", "NAME", "SIZE", "FILES", "MODIFIED");
    for m in &models {
        let state = if m.complete { "" } else { "  (incomplete: pull it again)" };
        let name = terminal::sanitized(&m.name);
        text +=
            &format!("{name:<width$}  {:>9}  {:>5}  {}{state}\n", size(m.bytes), m.files, ago(m.modified));
    }
    print(&text)
}

/// Time since `then`, in words.
fn ago(then: SystemTime) -> String {
    let seconds = then.elapsed().map_or(0, |d| d.as_secs());
    let (n, unit) = match seconds {
        0..60 => return "just now".into(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

/// Table of short names: download size, and the model that each stands for.
fn table<'a>(aliases: impl Iterator<Item = &'a Alias>) -> String {
    let width = ALIASES.iter().map(|a| a.name.len()).max().unwrap_or(0);
    let line = |a: &Alias| format!("{:<width$}  {:>5.1} GB  {}\n", a.name, a.gigabytes, a.model);
    format!("{:<width$}  {:>8}  {}\n", "NAME", "SIZE", "MODEL") + &aliases.map(line).collect::<String>()
}

/// `tallow search`
pub(crate) fn search(args: &Search, sources: &Sources) -> Result<(), Failed> {
    let aliases: Vec<&Alias> = tallow_hub::search(&args.text).collect();
    let offline = args.text.is_empty() || offline(sources, args.offline)?.is_some();
    let (found, why) = match offline {
        true => (Vec::new(), None),
        false => match hub()?.search(&args.text.join(" ")) {
            Ok(found) => (found, None),
            Err(why) => (Vec::new(), Some(why)),
        },
    };
    if args.json {
        let short = |a: &&Alias| json!({ "name": a.name, "model": a.model, "gigabytes": (f64::from(a.gigabytes) * 10.0).round() / 10.0 });
        let on_hub = |m: &Match| json!({ "model": m.repo.as_str(), "downloads": m.downloads });
        let all = json!({
            "short_names": aliases.iter().map(short).collect::<Vec<_>>(),
            "hub": found.iter().map(on_hub).collect::<Vec<_>>(),
        });
        return print(&format!("{all:#}\n"));
    }
    let mut text = String::new();
    match aliases[..] {
        [] => text += &format!("no short name contains {:?}\n", args.text.join(" ")),
        _ => text += &table(aliases.iter().copied()),
    }
    if !found.is_empty() {
        text += "\nGGUF models at the hub, by downloads\n";
        found.iter().for_each(|m| text += &format!("{:>11}  {}\n", m.downloads, m.repo));
    }
    if let Some(why) = why {
        text += &format!("\nthe hub was not searched: {why}\n");
    }
    text += "\nSizes are about what is downloaded. A quantization may follow a name, as in qwen3:4b:Q8_0. Every other model \
             of the\nhub is named as org/name or org/name:QUANT; `tallow pull NAME` says whether it can be run.\n";
    print(&terminal::sanitized(&text))
}

/// `tallow rm`
pub(crate) fn rm(args: &Rm) -> Result<(), Failed> {
    if args.model == DEMO {
        return Err(Failed::new("demo is part of the program, and cannot be removed"));
    }
    let (cache, model) = (cache()?, ModelRef::parse(&args.model)?);
    // What is not there needs no confirmation.
    let there = named(&cache, &model)?;
    if !args.yes && !there.is_empty() && !agreed(&there)? {
        return print("nothing was removed\n");
    }
    let removed = cache.remove(&model)?;
    print(&format!("removed {}, {}\n", counted(removed.files, "file"), size(removed.bytes)))
}

/// Asks for confirmation: other programs use the cache, too.
fn agreed(models: &[CachedModel]) -> Result<bool, Failed> {
    let bytes = size(models.iter().map(|m| m.bytes).sum());
    let names =
        models.iter().map(|m| terminal::sanitized(&m.name).into_owned()).collect::<Vec<_>>().join(", ");
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let why = format!(
            "{names} ({bytes}) is in the cache that other programs that use the hub share; --yes removes it without asking"
        );
        return Err(Failed::new(why));
    }
    let mut err = std::io::stderr();
    write!(err, "remove {names} ({bytes}) from the cache, for other programs that use the hub, too? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
