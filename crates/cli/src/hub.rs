//! The hub and the cache of downloaded models, as the environment and the settings have them.

use std::io::IsTerminal;
use std::ops::ControlFlow;

use indicatif::ProgressBar;
use tallow_hub::{Cache, CachedModel, Event, Hub, HubError, ModelRef, Snapshot};

use crate::memory::size;
use crate::settings::{Origin, Sources, Switch};
use crate::terminal::counted;
use crate::{Failed, env, terminal};

/// The cache of downloaded models.
pub(crate) fn cache() -> Result<Cache, Failed> {
    let folder = env::hub_cache().ok_or_else(|| {
        Failed::new("there is no folder for downloaded models: set HOME, or HF_HUB_CACHE to a folder")
    })?;
    Ok(Cache::at(folder))
}

/// The models of the cache that a name means: all quantizations where it says none.
pub(crate) fn named(cache: &Cache, model: &ModelRef) -> Result<Vec<CachedModel>, HubError> {
    let name = model.to_string();
    let is_of = |m: &CachedModel| {
        let whole = m.name.split(':').next() == Some(model.repo.as_str());
        whole && (model.quant.is_none() || model.revision.is_some() || m.name.eq_ignore_ascii_case(&name))
    };
    Ok(cache.list()?.into_iter().filter(is_of).collect())
}

/// Hub client, configured from the environment.
pub(crate) fn hub() -> Result<Hub, Failed> {
    let (proxy, no_proxy) = env::proxy();
    let mut settings = tallow_hub::Settings { token: env::hub_token(), no_proxy, ..Default::default() };
    (settings.names.endpoint, settings.names.token) = ("HF_ENDPOINT".into(), "HF_TOKEN".into());
    if let Some((variable, proxy)) = proxy {
        (settings.names.proxy, settings.proxy) = (variable.into(), Some(proxy));
    }
    if let Some(endpoint) = env::get("HF_ENDPOINT") {
        settings.endpoint = endpoint;
    }
    Ok(Hub::new(cache()?, &settings)?)
}

/// Why the hub must not be contacted: which setting says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offline {
    Flag,
    /// `HF_HUB_OFFLINE`, which other programs that use the hub read, too.
    HubVariable,
    OwnVariable,
    File,
    /// A request named the model.
    Request,
}

impl std::fmt::Display for Offline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Offline::Flag => "--offline is given: leave it out to download models",
            Offline::HubVariable => "HF_HUB_OFFLINE is set: unset it to download models",
            Offline::Request => "requests download nothing: `tallow pull` does",
            Offline::OwnVariable => "TALLOW_OFFLINE is set: unset it to download models",
            Offline::File => {
                "the configuration file says `offline = true`: take that out to download models (`tallow doctor` says where \
                 the file is)"
            }
        })
    }
}

/// The setting by which the hub must not be contacted, if there is one.
pub(crate) fn offline(sources: &Sources, flag: bool) -> Result<Option<Offline>, Failed> {
    let asked = sources.get("offline", flag.then_some(Switch(true)), Switch(false))?;
    let off = |value: &String| ["0", "false", "no", "off"].contains(&value.as_str());
    Ok(match asked.origin {
        origin if asked.value.0 => Some(match origin {
            Origin::Flag => Offline::Flag,
            Origin::Environment(_) => Offline::OwnVariable,
            _ => Offline::File,
        }),
        _ => env::get("HF_HUB_OFFLINE").filter(|value| !off(value)).map(|_| Offline::HubVariable),
    })
}

/// Downloads a model with a progress bar.
pub(crate) fn fetch(model: &ModelRef) -> Result<Snapshot, Failed> {
    let mut bar: Option<(String, ProgressBar)> = None;
    let snapshot = hub()?.pull(model, &mut |event| {
        watch(&mut bar, event);
        ControlFlow::Continue(())
    });
    if let Some((_, bar)) = bar {
        bar.finish_and_clear();
    }
    Ok(snapshot?)
}

fn watch(bar: &mut Option<(String, ProgressBar)>, event: Event<'_>) {
    let tell = |bar: &Option<(String, ProgressBar)>, text: String| {
        let text = terminal::sanitized(&text).into_owned();
        match bar {
            Some((_, bar)) if !bar.is_hidden() => bar.println(text),
            _ => terminal::tell(&text),
        }
    };
    match event {
        // Without a terminal only unusual events are reported.
        Event::Missing { .. } if !std::io::stderr().is_terminal() => {}
        Event::Progress { file, done, total } => {
            if bar.as_ref().is_none_or(|(name, _)| name != file) {
                if let Some((_, old)) = bar.take() {
                    old.finish_and_clear();
                }
                // What an earlier pull left counts as done, but not for the speed.
                *bar = Some((file.to_owned(), terminal::resumed_bar(total, done, file)));
            } else if let Some((_, bar)) = bar {
                bar.set_length(total);
                bar.set_position(done);
            }
        }
        other => in_words(other).into_iter().for_each(|text| tell(bar, text)),
    }
}

/// A line about a pull; `None` for the progress of a file.
pub(crate) fn in_words(event: Event<'_>) -> Option<String> {
    Some(match event {
        Event::Missing { files: files @ 1.., bytes } => {
            format!("downloading {}, {}", counted(files, "file"), size(bytes))
        }
        Event::Waiting { file } => format!("{file} is being downloaded by another program; waiting for it"),
        Event::Retrying { what, why, wait } => {
            format!("{what}: {why}; trying again in {:.0} s", wait.as_secs_f64().ceil())
        }
        Event::Offline { why } => format!("{why}; using the copy that is here"),
        _ => return None,
    })
}
