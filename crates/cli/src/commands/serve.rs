//! `tallow serve`: an HTTP server for one model.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tallow_checkpoint::Checkpoint;
use tallow_engine::embedder::RunningEmbedder;
use tallow_engine::handle::RunningEngine;
use tallow_models::AnyModel;
use tallow_models::encoder::EncoderModel;
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_server::{Limits, Loading, ModelCard, ModelStore, Served, ServedEncoder, ServedSpeech, Settings};
use tallow_text::generation::Generation;
use tokio::net::{TcpListener, TcpSocket};

use super::show;
use crate::args::Serve;
use crate::disk_cache::DiskCache;
use crate::encoder::{self, Placement};
use crate::load;
use crate::lora::{self, Lora};
use crate::model_name::{DEMO, short_name};
use crate::model_store::Store;
use crate::notice::Notice;
use crate::settings::{Defaults, SampleArgs, Sources, resolve};
use crate::signal::{Signals, exit_now};
use crate::{Failed, build, descriptors, env, hub, log, memory, seq2seq, terminal};

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
        card: ModelCard::default(),
        commit: build::COMMIT,
        trim: memory::trim,
    };
    settings.check().map_err(Failed::new)?;
    let disk = DiskCache::new(sources, args.cache_disk.clone(), args.cache_disk_size)?;
    let ram_cache = sources.get("cache-ram", args.cache_ram, 0)?.value;
    let swa_full = sources.get("swa-full", args.swa_full.then_some(true), false)?.value;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // A port that is in use should not cost the loading of a model.
    let listener = runtime.block_on(listen(&host, port))?;
    let address = listener.local_addr()?;
    let loading = Loading::begin(runtime.handle(), listener, settings.limits);
    let name = args.model.as_deref().unwrap_or(DEMO);
    let how = load::OpenOptions::new(sources, args.engine.offline, args.engine.quant)?;
    let model = load::any(name, how)?;
    let models = args.allow_pull.then(|| store(&model, &args, sources)).transpose()?;
    let settings = Settings { card: card(&model), models, ..settings };
    let begin = |name: &str| -> Result<_, Failed> {
        Ok((runtime.block_on(loading.finish())?, announce(name, address, &settings, &runtime)))
    };
    let tier_by_flag = args.cache_disk.is_some() || args.cache_ram.is_some_and(|mib| mib > 0);
    if !matches!(model, AnyModel::Decoder(_)) && !tier_by_flag && (disk.is_some() || ram_cache > 0) {
        // Such a variable or file may be there for other models.
        let why = "the model has an encoder, whose pages are not saved";
        tracing::warn!("the settings cache-disk and cache-ram are ignored: {why}");
    }
    let loaded = match model {
        AnyModel::Decoder(model) => {
            let loaded = load::decoder(name, *model)?.with_template(args.chat_template.as_deref())?;
            loaded.with_draft(sources, args.engine.draft.clone(), how)?
        }
        _ if tier_by_flag => {
            let flag = if args.cache_disk.is_some() { "--cache-disk" } else { "--cache-ram" };
            return Err(Failed::new(format!("{flag}: the model has an encoder, whose pages are not saved")));
        }
        _ if args.chat_template.is_some() || args.tool_format.is_some() => {
            let flag = if args.chat_template.is_some() { "--chat-template" } else { "--tool-format" };
            return Err(Failed::new(format!("{flag}: the model has an encoder, and does not chat")));
        }
        _ if !args.lora.is_empty() || args.lora_dir.is_some() => {
            let flag = if args.lora.is_empty() { "--lora-dir" } else { "--lora" };
            return Err(Failed::new(format!("{flag}: the model has an encoder, and takes no adapters")));
        }
        AnyModel::Encoder(model) => {
            let handle = start_encoder(&model, name, &args, sources)?;
            let (listener, signals) = begin(&short_name(name))?;
            let served = ServedEncoder { handle: handle.clone() };
            runtime.block_on(tallow_server::serve_encoder(
                listener,
                served,
                settings,
                stop(drain, signals),
            ))?;
            tracing::info!("stopped");
            return Ok(());
        }
        AnyModel::Seq2Seq(model) => {
            let (_running, served) = start_seq2seq(&model, name, &args, sources)?;
            let (listener, signals) = begin(&short_name(name))?;
            runtime.block_on(tallow_server::serve_speech(
                listener,
                served,
                settings,
                stop(drain, signals),
            ))?;
            tracing::info!("stopped");
            return Ok(());
        }
    };
    let config = resolve(sources, &args.flags(), &loaded.generation, Defaults::API);
    let mut config = loaded.after_text_codec(config)?;
    let adapters = Lora::open_all(&args.lora)?;
    let for_clients =
        args.lora_dir.as_ref().map_or(0, |_| args.lora_memory.unwrap_or(512).saturating_mul(1 << 20));
    config.adapter_room = lora::bytes(&adapters).saturating_add(for_clients);
    config.ram_cache = ram_cache.saturating_mul(1 << 20);
    // What is saved of a page is all layers'.
    config.swa_full = swa_full || ram_cache > 0 || disk.is_some();
    let names = std::iter::once(loaded.name.clone()).chain(args.alias).collect();
    let handle = loaded.start(&config, names, &Notice::log)?;
    lora::load(&handle, adapters)?;
    if let Some(disk) = disk {
        disk.start(&handle, &loaded.model, &config, &settings.api_keys)?;
    }
    let (listener, signals) = begin(&loaded.name)?;
    let served = Served {
        handle: handle.clone(),
        templates: loaded.text_codec()?.templates.clone(),
        tool_format: args.tool_format.as_deref().map(super::parse::tool_format).transpose()?,
        max_tokens: config.max_tokens.as_ref().map(|s| s.value),
    };
    runtime.block_on(tallow_server::serve(listener, served, settings, stop(drain, signals)))?;
    tracing::info!("stopped");
    Ok(())
}

/// The models on this machine, for clients.
fn store(model: &AnyModel, args: &Serve, sources: &Sources) -> Result<Arc<dyn ModelStore>, Failed> {
    let offline = hub::offline(sources, args.engine.offline)?;
    Ok(Arc::new(Store { offline, served: checkpoint(model).path.clone() }))
}

fn checkpoint(model: &AnyModel) -> &Checkpoint {
    match model {
        AnyModel::Decoder(model) => &model.checkpoint,
        AnyModel::Encoder(model) => &model.checkpoint,
        AnyModel::Seq2Seq(model) => &model.checkpoint,
    }
}

/// Facts about a model's files.
fn card(model: &AnyModel) -> ModelCard {
    let checkpoint = checkpoint(model);
    let (family, bytes) = match model {
        AnyModel::Decoder(model) => (model.family.name, model.weight_bytes()),
        AnyModel::Encoder(model) => (model.family.name(), model.weight_bytes()),
        AnyModel::Seq2Seq(model) => (model.family.name, model.weight_bytes()),
    };
    let parameters: usize = checkpoint.tensors().map(|(_, tensor)| tensor.len()).sum();
    let is_gguf = checkpoint.path.extension().is_some_and(|extension| extension == "gguf");
    ModelCard {
        family: family.to_owned(),
        parameters: parameters as u64,
        types: show::main_type(checkpoint),
        bytes: bytes as u64,
        format: if is_gguf { "gguf" } else { "safetensors" },
    }
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

/// Starts an embedder for an encoder. Options for text generation are rejected.
fn start_encoder(
    model: &EncoderModel,
    name: &str,
    args: &Serve,
    sources: &Sources,
) -> Result<RunningEmbedder, Failed> {
    let engine = &args.engine;
    if args.sampling != SampleArgs::default() || engine.context.is_some() || engine.kv.is_some() {
        let why = "the model is an encoder and writes no text: --context, --kv and how tokens are chosen are not for it";
        return Err(Failed::new(why));
    }
    let config = resolve(sources, &args.flags(), &Generation::default(), Defaults::API)?;
    let names = std::iter::once(short_name(name)).chain(args.alias.iter().cloned()).collect();
    encoder::start(
        model,
        Placement::of(&config),
        names,
        config.slots.value + config.queue.value,
        &Notice::log,
    )
}

/// Starts a transcriber for a speech model. Options for text generation are rejected.
fn start_seq2seq(
    model: &Seq2SeqModel,
    name: &str,
    args: &Serve,
    sources: &Sources,
) -> Result<(RunningEngine, ServedSpeech), Failed> {
    if !model.takes_audio() {
        return Err(Failed::new(
            "the model reads all of a text before it writes, which is not served: use `tallow run`",
        ));
    }
    if args.sampling != SampleArgs::default() || args.engine.context.is_some() {
        let why = "the model writes what was said: --context and how tokens are chosen are not for it";
        return Err(Failed::new(why));
    }
    let config = resolve(sources, &args.flags(), &Generation::default(), Defaults::API)?;
    let names = std::iter::once(short_name(name)).chain(args.alias.iter().cloned()).collect();
    let (slots, queue) = (config.slots.value, config.slots.value + config.queue.value);
    let (running, transcriber) =
        seq2seq::transcriber(model, names, Placement::of(&config), config.kv.value, slots, &Notice::log)?;
    Ok((running, ServedSpeech::new(transcriber, queue)))
}

/// Logs the server's address. Returns the listener for stop signals.
fn announce(
    name: &str,
    address: SocketAddr,
    settings: &Settings,
    runtime: &tokio::runtime::Runtime,
) -> Signals {
    // Before the log line: whoever reads that may ask the server to stop at once.
    let signals = {
        let _within = runtime.enter();
        Signals::listen()
    };
    tracing::info!("serving {} on http://{address}/v1", terminal::sanitized(name));
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
