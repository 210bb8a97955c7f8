//! `tallow serve`: an HTTP server for one model or several.

mod loader;
mod sharing;
mod source;
mod start;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tallow_server::{Limits, Loading, ModelEntry, ModelLoader, ModelStore, Models, ReceiptLog, Settings};
use tokio::net::{TcpListener, TcpSocket};

use crate::args::Serve;
use crate::hub;
use crate::lora;
use crate::model_store::Store;
use crate::notice::Notice;
use crate::settings::{Sources, unreadable};
use crate::signal::{Signals, exit_now};
use crate::{Failed, build, descriptors, env, log, memory, terminal};

use loader::Loader;
use start::{Common, Opened};

pub(crate) fn serve(args: Serve, sources: &Sources) -> Result<(), Failed> {
    let host = sources.get("host", args.host.clone(), "127.0.0.1".to_owned())?.value;
    let port = sources.get("port", args.port, 8080)?.value;
    let drain = sources.get("drain", args.drain, 30)?.value;
    let settings = Settings {
        limits: limits(&args, sources)?,
        api_keys: keys(args.api_key_file.as_deref())?,
        allow_hosts: args.allow_host.clone(),
        allow_origins: args.allow_origin.clone(),
        template_values: args.allow_template_kwargs,
        models: None,
        adapters: args.lora_dir.as_deref().map(lora::folder).transpose()?,
        drain: Duration::from_secs(drain),
        private_health: args.private_health,
        log: log::health(),
        commit: build::COMMIT,
        trim: memory::trim,
    };
    settings.check().map_err(Failed::new)?;
    let models = source::of(&args, sources)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // A port that is in use should not cost the loading of a model.
    let listener = runtime.block_on(listen(&host, port))?;
    let address = listener.local_addr()?;
    let loading = Loading::begin(runtime.handle(), listener, settings.limits);
    let receipts = args.receipts.as_deref().map(receipts).transpose()?;
    let common = Common { api_keys: settings.api_keys.clone(), receipts };
    let open = |source| Opened::new(source, &args, &common);
    let opened = models.iter().map(open).collect::<Result<Vec<_>, Failed>>()?;
    let store = args.allow_pull.then(|| store(&opened, &args, sources)).transpose()?;
    let settings = Settings { models: store, ..settings };
    let entries = opened.iter().map(Opened::entry).collect::<Result<Vec<_>, Failed>>()?;
    let (models, what) = match (opened.as_slice(), entries.as_slice()) {
        ([only], [entry]) if !args.on_demand && entry.keep_alive.is_none() => {
            (Models::fixed(entry.clone(), only.start(&Notice::log)?), only.name.clone())
        }
        _ => several(opened, entries, Loader::new(&args, sources, &common))?,
    };
    let listener = runtime.block_on(loading.finish())?;
    let signals = announce(&what, address, &settings, &runtime);
    let served = runtime.block_on(tallow_server::serve(listener, models, settings, stop(drain, signals)));
    if let Some(receipts) = &common.receipts {
        receipts.finish();
    }
    served?;
    tracing::info!("stopped");
    Ok(())
}

/// Several models: those that fit together are loaded. Returns what is served in words, too.
fn several(
    opened: Vec<Opened>,
    entries: Vec<ModelEntry>,
    loader: Loader,
) -> Result<(Models, String), Failed> {
    source::check_names(&entries)?;
    let names: Vec<String> = entries.iter().filter_map(|entry| entry.names.first().cloned()).collect();
    let loader = Arc::new(loader.of(opened));
    let mut models = Vec::new();
    for entry in entries {
        let name = entry.names.first().cloned().unwrap_or_default();
        let loaded = match loader.load(&entry, &mut |_, _| false) {
            Ok(loaded) => Some(loaded),
            // What does not fit beside the others is loaded when it is asked for, in place of some of them.
            Err(tallow_server::LoadError::NoRoom(why)) if !entry.pinned && !models.is_empty() => {
                tracing::info!("{name} is loaded when it is asked for: {why}");
                None
            }
            Err(tallow_server::LoadError::NoRoom(why) | tallow_server::LoadError::Failed(why)) => {
                return Err(Failed::new(format!("{name}: {why}")));
            }
        };
        models.push((entry, loaded));
    }
    if loader.finds() {
        models.extend(loader.cached()?.into_iter().map(|entry| (entry, None)));
    }
    let what = match names.as_slice() {
        [] => "the downloaded models".to_owned(),
        names => names.join(", "),
    };
    Ok((Models::several(models, loader), what))
}

/// The models on this machine, for clients.
fn store(opened: &[Opened], args: &Serve, sources: &Sources) -> Result<Arc<dyn ModelStore>, Failed> {
    let offline = hub::offline(sources, args.engine.offline)?;
    Ok(Arc::new(Store { offline, served: opened.iter().map(|model| model.path().to_owned()).collect() }))
}

/// A file of receipts in a folder.
fn receipts(folder: &Path) -> Result<Arc<ReceiptLog>, Failed> {
    let log = ReceiptLog::create(folder);
    log.map(Arc::new).map_err(|e| Failed::new(format!("--receipts {}: {}", folder.display(), unreadable(&e))))
}

/// Limits on what clients may take of the machine.
fn limits(args: &Serve, sources: &Sources) -> Result<Limits, Failed> {
    let usual = Limits::default();
    let name = "max-memory-in-flight";
    let memory = sources.get(name, args.max_memory_in_flight, usual.memory >> 20)?.value;
    let (least, most) = (Limits::LEAST_MEMORY >> 20, usize::MAX >> 20);
    if !(least..=most).contains(&memory) {
        return Err(Failed::new(format!("{name} is {memory} MiB; it must be at least {least}")));
    }
    let connections = sources.get("max-connections", args.max_connections, usual.connections)?.value;
    let name = "max-per-address";
    let of_one = sources.get(name, args.max_per_address, connections.div_ceil(2))?.value;
    if connections == 0 || of_one == 0 {
        return Err(Failed::new("max-connections and max-per-address must be at least 1"));
    }
    let limits = Limits {
        memory: memory << 20,
        connections,
        connections_per_address: of_one,
        descriptors: descriptors::raise_limit(),
    };
    if limits.most_connections() < connections {
        let most = limits.most_connections();
        tracing::warn!(
            "connections are limited to {most}: the system gives this process no more descriptors (ulimit -Hn)"
        );
    }
    Ok(limits)
}

/// Logs the server's address. Returns the listener for stop signals.
fn announce(
    what: &str,
    address: SocketAddr,
    settings: &Settings,
    runtime: &tokio::runtime::Runtime,
) -> Signals {
    // Before the log line: whoever reads that may ask the server to stop at once.
    let signals = {
        let _within = runtime.enter();
        Signals::listen()
    };
    tracing::info!("serving {} on http://{address}/v1", terminal::sanitized(what));
    if !address.ip().is_loopback() && settings.api_keys.is_empty() {
        tracing::warn!(
            "everybody who can reach {address} can use this server: set TALLOW_API_KEY or --api-key-file"
        );
    }
    signals
}

/// Binds the listening socket.
async fn listen(host: &str, port: u16) -> Result<TcpListener, Failed> {
    let failed =
        |why: &dyn std::fmt::Display| Failed::new(format!("cannot listen on {host}, port {port}: {why}"));
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = match name.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => tokio::net::lookup_host((name, port)).await.map_err(|e| failed(&e))?.collect(),
    };
    let none = Err(std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, "the name has no address"));
    addresses.into_iter().fold(none, |bound, address| bound.or_else(|_| bind(address))).map_err(|e| {
        match e.kind() {
            std::io::ErrorKind::AddrInUse => {
                failed(&format!("{e}; take another --port, or 0 for any that is free"))
            }
            _ => failed(&e),
        }
    })
}

/// Binds a socket with a long accept backlog, so that a burst of clients does not keep others out: a client that finds
/// the backlog full retries only after a second.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    const BACKLOG: u32 = 4096;
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that has ended can be restarted at once.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// API keys from the environment and from a file.
fn keys(file: Option<&Path>) -> Result<Vec<String>, Failed> {
    let variable = env::get("TALLOW_API_KEY").unwrap_or_default();
    let mut keys: Vec<String> = variable.split(',').map(|k| k.trim().to_owned()).collect();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failed::new(format!("the keys in {} cannot be read: {e}", path.display())))?;
        keys.extend(text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.starts_with('#')));
        if keys.iter().all(String::is_empty) {
            let why = format!("{} has no keys; without one the server would be open to all", path.display());
            return Err(Failed::new(why));
        }
    }
    keys.retain(|key| !key.is_empty());
    Ok(keys)
}

/// Resolves at the first stop signal; the second one ends the program.
async fn stop(drain: u64, mut signals: Signals) {
    let how = signals.next().await;
    tracing::info!("{how}: finishing what is under way, for at most {drain} s; again to stop at once");
    tokio::spawn(async move {
        let how = signals.next().await;
        tracing::warn!("{how} again: stopping at once");
        log::finish();
        exit_now(130)
    });
}
