//! `tallow pull`, `tallow list`, `tallow rm`: models from the hub.

use std::io::IsTerminal;
use std::time::SystemTime;

use indicatif::ProgressBar;
use serde_json::json;
use tallow_hub::{ALIASES, Event, ModelRef, Snapshot};

use super::print;
use crate::Failed;
use crate::args::{List, Pull, Rm};
use crate::load::{cache, hub, is_offline};
use crate::memory::size;
use crate::screen;
use crate::settings::Sources;

/// `tallow pull`
pub(crate) fn pull(args: &Pull, sources: &Sources) -> Result<(), Failed> {
    if is_offline(sources, false)? {
        return Err(Failed::new("the hub is not to be asked (offline); unset that to download models"));
    }
    let snapshot = fetch(&ModelRef::parse(&args.model)?)?;
    print(&format!("{}\n", snapshot.path.display()))
}

/// Downloads a model, showing how far it has got.
pub(crate) fn fetch(model: &ModelRef) -> Result<Snapshot, Failed> {
    let mut bar: Option<(String, ProgressBar)> = None;
    let snapshot = hub()?.pull(model, &mut |event| watch(&mut bar, event));
    if let Some((_, bar)) = bar {
        bar.finish_and_clear();
    }
    Ok(snapshot?)
}

fn watch(bar: &mut Option<(String, ProgressBar)>, event: Event<'_>) {
    let tell = |bar: &Option<(String, ProgressBar)>, text: String| {
        let text = screen::harmless(&text).into_owned();
        match bar {
            Some((_, bar)) if !bar.is_hidden() => bar.println(text),
            _ => screen::tell(&text),
        }
    };
    match event {
        // Where nobody looks, only what is out of the ordinary is said.
        Event::Missing { .. } if !std::io::stderr().is_terminal() => {}
        Event::Missing { files: 0, .. } => {}
        Event::Missing { files, bytes } => tell(bar, format!("downloading {files} files, {}", size(bytes))),
        Event::Progress { file, done, total } => {
            if bar.as_ref().is_none_or(|(name, _)| name != file) {
                if let Some((_, old)) = bar.take() {
                    old.finish_and_clear();
                }
                *bar = Some((file.to_owned(), screen::bytes_bar(total, file)));
            }
            if let Some((_, bar)) = bar {
                bar.set_length(total);
                bar.set_position(done);
            }
        }
        Event::Waiting { file } => {
            tell(bar, format!("{file} is being downloaded by another program; waiting for it"))
        }
        Event::Retrying { what, why, wait } => {
            tell(bar, format!("{what}: {why}; trying again in {:.0} s", wait.as_secs_f64().ceil()));
        }
        Event::Offline { why } => tell(bar, format!("{why}; using the copy that is here")),
        _ => {}
    }
}

/// `tallow list`
pub(crate) fn list(args: &List) -> Result<(), Failed> {
    if args.aliases {
        let width = ALIASES.iter().map(|a| a.name.len()).max().unwrap_or(0);
        let line = |a: &tallow_hub::Alias| format!("{:<width$}  {}\n", a.name, a.model);
        return print(&ALIASES.iter().map(line).collect::<String>());
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
            "no models are downloaded; `tallow pull NAME` gets one, `tallow list --aliases` shows short names\n",
        );
    }
    let width = models.iter().map(|m| m.name.chars().count()).max().unwrap_or(0).max(4);
    let mut text = format!("{:<width$}  {:>9}  {:>5}  {}\n", "NAME", "SIZE", "FILES", "MODIFIED");
    for m in &models {
        let state = if m.complete { "" } else { "  (incomplete: pull it again)" };
        let name = screen::harmless(&m.name);
        text +=
            &format!("{name:<width$}  {:>9}  {:>5}  {}{state}\n", size(m.bytes), m.files, ago(m.modified));
    }
    print(&text)
}

/// How long ago, in words.
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

/// `tallow rm`
pub(crate) fn rm(args: &Rm) -> Result<(), Failed> {
    let removed = cache()?.remove(&ModelRef::parse(&args.model)?)?;
    print(&format!("removed {} files, {}\n", removed.files, size(removed.bytes)))
}
