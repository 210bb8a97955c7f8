//! [`Opened`]: a model that is open, and how it is started.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tallow_checkpoint::Checkpoint;
use tallow_models::AnyModel;
use tallow_models::encoder::EncoderModel;
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_server::{LoadedModel, ModelCard, ModelEntry, ModelKind, ReceiptLog, ReceiptModel, Receipts};
use tallow_server::{Served, ServedEncoder, ServedSpeech};
use tallow_text::generation::Generation;

use super::source::ModelSource;
use crate::args::Serve;
use crate::commands::{parse, replay, show};
use crate::disk_cache::DiskCache;
use crate::encoder::{self, Placement};
use crate::fit::Host;
use crate::load::{self, OpenOptions};
use crate::lora::{self, Lora};
use crate::settings::{Defaults, EngineConfig, SampleArgs, Setting, Switch, resolve};
use crate::{Failed, build, seq2seq};

/// A model whose files are open, not yet on a device.
pub(super) struct Opened {
    /// Its primary name.
    pub(super) name: String,
    pub(super) source: ModelSource,
    model: AnyModel,
    how: OpenOptions,
    args: Serve,
    common: Common,
    /// Context with which it was started before, if that was chosen to fit.
    pub(super) context: Option<Setting<usize>>,
}

/// Settings and resources that all models of a server share.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) api_keys: Vec<String>,
    /// The file of receipts, if they are written.
    pub(super) receipts: Option<Arc<ReceiptLog>>,
}

impl Opened {
    /// Opens a model and checks what can be checked before it is loaded.
    pub(super) fn new(source: &ModelSource, args: &Serve, common: &Common) -> Result<Opened, Failed> {
        let how = OpenOptions::new(&source.settings, args.engine.offline, args.engine.quant)?;
        let how = if source.is_cached { how.by_request() } else { how };
        let model = load::any(&source.model, how)?;
        let name = source.names.first().cloned().unwrap_or_default();
        let (source, args, common) = (source.clone(), args.clone(), common.clone());
        let opened = Opened { name, source, model, how, args, common, context: None };
        opened.check()?;
        Ok(opened)
    }

    /// Rejects settings that are not for this kind of model.
    fn check(&self) -> Result<(), Failed> {
        let (args, settings) = (&self.args, &self.source.settings);
        if let AnyModel::Seq2Seq(model) = &self.model
            && !model.takes_audio()
        {
            return Err(Failed::new(
                "the model reads all of a text before it writes, which is not served: use `tallow run`",
            ));
        }
        if matches!(self.model, AnyModel::Decoder(_)) {
            return Ok(());
        }
        let tier_by_flag = args.cache_disk.is_some() || args.cache_ram.is_some_and(|mib| mib > 0);
        if tier_by_flag && self.source.models == 1 {
            let flag = if args.cache_disk.is_some() { "--cache-disk" } else { "--cache-ram" };
            return Err(Failed::new(format!("{flag}: the model has an encoder, whose pages are not saved")));
        }
        let ram_cache = settings.get("cache-ram", args.cache_ram, 0)?.value;
        if !tier_by_flag && (self.disk()?.is_some() || ram_cache > 0) {
            // Such a variable or file may be there for other models.
            let why = "the model has an encoder, whose pages are not saved";
            tracing::warn!("the settings cache-disk and cache-ram are ignored: {why}");
        }
        if args.chat_template.is_some() || args.tool_format.is_some() {
            let flag = if args.chat_template.is_some() { "--chat-template" } else { "--tool-format" };
            return Err(Failed::new(format!("{flag}: the model has an encoder, and does not chat")));
        }
        if !self.source.lora.is_empty() || (args.lora_dir.is_some() && self.source.models == 1) {
            let flag = if self.source.lora.is_empty() { "--lora-dir" } else { "--lora" };
            return Err(Failed::new(format!("{flag}: the model has an encoder, and takes no adapters")));
        }
        // Flags for all models of a server concern those that they can.
        let engine = &args.engine;
        let chooses = args.sampling != SampleArgs::default() || engine.context.is_some();
        match &self.model {
            _ if self.source.models > 1 => Ok(()),
            AnyModel::Encoder(_) if chooses || engine.kv.is_some() => Err(Failed::new(
                "the model is an encoder and writes no text: --context, --kv and how tokens are chosen are not for it",
            )),
            AnyModel::Seq2Seq(_) if chooses => Err(Failed::new(
                "the model writes what was said: --context and how tokens are chosen are not for it",
            )),
            _ => Ok(()),
        }
    }

    fn disk(&self) -> Result<Option<DiskCache>, Failed> {
        DiskCache::new(&self.source.settings, self.args.cache_disk.clone(), self.args.cache_disk_size)
    }

    /// The model's file or folder.
    pub(super) fn path(&self) -> &Path {
        &self.checkpoint().path
    }

    fn checkpoint(&self) -> &Checkpoint {
        match &self.model {
            AnyModel::Decoder(model) => &model.checkpoint,
            AnyModel::Encoder(model) => &model.checkpoint,
            AnyModel::Seq2Seq(model) => &model.checkpoint,
        }
    }

    /// The model as the server lists it.
    pub(super) fn entry(&self) -> Result<ModelEntry, Failed> {
        let settings = &self.source.settings;
        let keep_alive = settings.find::<u64>("keep-alive", self.args.keep_alive)?;
        let kind = match &self.model {
            AnyModel::Decoder(_) => ModelKind::Generator,
            AnyModel::Encoder(_) => ModelKind::Encoder,
            AnyModel::Seq2Seq(_) => ModelKind::Speech,
        };
        Ok(ModelEntry {
            names: self.source.names.clone(),
            kind,
            card: self.card(),
            pinned: settings.get("pinned", None, Switch(false))?.value.0,
            keep_alive: keep_alive.map(|seconds| Duration::from_secs(seconds.value)),
        })
    }

    /// Facts about its files.
    fn card(&self) -> ModelCard {
        let checkpoint = self.checkpoint();
        let (family, bytes) = match &self.model {
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

    fn config(&self, generation: &Generation) -> Result<EngineConfig, Failed> {
        let config = resolve(&self.source.settings, &self.args.flags(), generation, Defaults::API)?;
        Ok(EngineConfig {
            context: self.context.clone().or(config.context),
            models: self.source.models,
            ..config
        })
    }

    /// Loads it onto a device and starts its engine.
    pub(super) fn start(&self, host: &dyn Host) -> Result<LoadedModel, Failed> {
        match &self.model {
            AnyModel::Decoder(model) => self.start_decoder((**model).clone(), host),
            AnyModel::Encoder(model) => self.start_encoder(model, host),
            AnyModel::Seq2Seq(model) => self.start_seq2seq(model, host),
        }
    }

    fn start_decoder(&self, model: tallow_models::Model, host: &dyn Host) -> Result<LoadedModel, Failed> {
        let (args, settings) = (&self.args, &self.source.settings);
        let template = settings.find("chat-template", args.chat_template.clone())?;
        let loaded = load::decoder(&self.source.model, model)?
            .with_template(template.as_ref().map(|setting| setting.value.as_path()))?
            .with_draft(settings, args.engine.draft.clone(), self.how)?;
        let mut config = loaded.after_text_codec(self.config(&loaded.generation))?;
        let adapters = Lora::open_all(&self.source.lora)?;
        let for_clients =
            args.lora_dir.as_ref().map_or(0, |_| args.lora_memory.unwrap_or(512).saturating_mul(1 << 20));
        let ram_cache = settings.get("cache-ram", args.cache_ram, 0)?.value;
        let disk = self.disk()?;
        config.adapter_room = lora::bytes(&adapters).saturating_add(for_clients);
        config.ram_cache = ram_cache.saturating_mul(1 << 20);
        // What is saved of a page is all layers'.
        let swa_full = settings.get("swa-full", args.swa_full.then_some(true), false)?.value;
        config.swa_full = swa_full || ram_cache > 0 || disk.is_some();
        let handle = loaded.start(&config, self.source.names.clone(), host)?;
        lora::load(&handle, adapters)?;
        if let Some(disk) = disk {
            disk.start(&handle, &loaded.model, &config, &self.common.api_keys)?;
        }
        let tool_format = settings.find("tool-format", args.tool_format.clone())?;
        let served = Served {
            handle: handle.clone(),
            templates: loaded.text_codec()?.templates.clone(),
            tool_format: tool_format.as_ref().map(|name| parse::tool_format(&name.value)).transpose()?,
            max_tokens: config.max_tokens.as_ref().map(|s| s.value),
            receipts: self.receipts(&loaded, &config, handle.info().context)?,
        };
        Ok(LoadedModel::new(served, handle))
    }

    /// The receipts of its answers, if they are written.
    fn receipts(
        &self,
        loaded: &load::LoadedModel,
        config: &EngineConfig,
        context: usize,
    ) -> Result<Option<Receipts>, Failed> {
        let Some(log) = &self.common.receipts else { return Ok(None) };
        let model = ReceiptModel {
            name: self.source.model.clone(),
            digest: replay::digest(&loaded.model)?,
            quant: loaded.model.recipe.map(|recipe| recipe.to_string()),
            program: build::VERSION.to_owned(),
            device: config.device.value.to_string(),
            isa: config.isa.value.to_string(),
            arithmetic: config.arithmetic.value.to_string(),
            kv: config.kv.value.to_string(),
            context,
        };
        Ok(Some(Receipts::new(model, log.clone())))
    }

    fn start_encoder(&self, model: &EncoderModel, host: &dyn Host) -> Result<LoadedModel, Failed> {
        let config = self.config(&Generation::default())?;
        let most = config.slots.value + config.queue.value;
        let names = self.source.names.clone();
        let handle = encoder::start(model, Placement::of(&config), names, most, host)?;
        Ok(LoadedModel::new(ServedEncoder { handle: handle.clone() }, handle))
    }

    fn start_seq2seq(&self, model: &Seq2SeqModel, host: &dyn Host) -> Result<LoadedModel, Failed> {
        let config = self.config(&Generation::default())?;
        let (slots, queue) = (config.slots.value, config.slots.value + config.queue.value);
        let (names, placement) = (self.source.names.clone(), Placement::of(&config));
        let (running, transcriber) =
            seq2seq::transcriber(model, names, placement, config.kv.value, slots, host)?;
        Ok(LoadedModel::new(ServedSpeech::new(transcriber, queue), running))
    }
}
