//! From a model's name to an open model.

use std::path::Path;
use std::sync::OnceLock;

use tallow_checkpoint::Checkpoint;
use tallow_hub::{HubError, ModelRef, NameError};
use tallow_models::encoder::EncoderModel;
use tallow_models::recipe::Recipe;
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_models::{AnyModel, Model};
use tallow_text::generation::Generation;
use tallow_text::template::ChatTemplates;
use tallow_text::tokenizer::Tokenizer;

use crate::Failed;
use crate::env::expand;
use crate::hub::{self, Offline};
use crate::model_name::{DEMO, short_name};
use crate::notice::Notice;
use crate::settings::{Sources, unreadable};

/// The model of the name [`DEMO`].
static DEMO_BYTES: &[u8] = include_bytes!("../../../assets/demo.gguf");

/// A decoder model with what goes with it, not yet on a device.
#[derive(Debug, Clone)]
pub(crate) struct LoadedModel {
    /// Name shown to users and clients.
    pub name: String,
    pub model: Model,
    /// Guesses its tokens.
    pub draft: Option<Model>,
    pub generation: Generation,
    text_codec: OnceLock<TextCodec>,
}

/// Tokenizer and chat templates.
#[derive(Debug, Clone)]
pub(crate) struct TextCodec {
    pub tokenizer: Tokenizer,
    pub templates: Option<ChatTemplates>,
}

impl TextCodec {
    fn of(model: &Model) -> Result<TextCodec, Failed> {
        let tokenizer = model.tokenizer()?;
        let templates = model.templates(&tokenizer)?;
        Ok(TextCodec { tokenizer, templates })
    }
}

/// Options for opening a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenOptions {
    offline: Option<Offline>,
    quant: Option<Recipe>,
}

impl OpenOptions {
    pub(crate) fn new(
        sources: &Sources,
        offline: bool,
        quant: Option<Recipe>,
    ) -> Result<OpenOptions, Failed> {
        let quant = sources.find("quant", quant)?.map(|quant| quant.value);
        Ok(OpenOptions { offline: hub::offline(sources, offline)?, quant })
    }

    /// With this `quant` or none, whatever the configuration file says: its setting is for models that are run, not
    /// written.
    pub(crate) fn to_write(
        sources: &Sources,
        offline: bool,
        quant: Option<Recipe>,
    ) -> Result<OpenOptions, Failed> {
        Ok(OpenOptions { offline: hub::offline(sources, offline)?, quant })
    }

    /// For a model that a request names: nothing is downloaded.
    pub(crate) fn by_request(self) -> OpenOptions {
        OpenOptions { offline: Some(Offline::Request), ..self }
    }

    /// Rejects `quant`: models with encoders are small, and are used as stored.
    fn as_stored(self) -> Result<(), Failed> {
        match self.quant {
            None => Ok(()),
            Some(quant) => Err(Failed::new(format!(
                "--quant {quant}: models with encoders are used as they are stored; leave the flag (or setting) out"
            ))),
        }
    }
}

/// Finds a model's files; downloads them if they are not here.
fn checkpoint(name: &str, offline: Option<Offline>) -> Result<Checkpoint, Failed> {
    if name == DEMO {
        return Ok(Checkpoint::embedded(DEMO, DEMO_BYTES)?);
    }
    let path = expand(name);
    let there = match std::fs::metadata(&path) {
        Ok(_) => return Ok(Checkpoint::open(&path)?),
        Err(why) => why,
    };
    // What cannot be a hub name was meant as a path.
    let model = ModelRef::parse(name);
    let slashes = name.matches('/').count() > 1 && model.is_err() && !name.contains("://");
    let meant_as_path = name.starts_with(['.', '/', '~', '\\']) || slashes;
    let ends = path.extension().is_some_and(|e| e == "gguf" || e == "safetensors") && !name.contains("://");
    if meant_as_path || (ends && model.as_ref().map_or(true, |model| model.repo.as_str() == name)) {
        return Err(Failed::new(format!("{}: {}", path.display(), unreadable(&there))));
    }
    let model = model.map_err(|e| match e {
        HubError::Name(NameError { why, .. }) => Failed::new(format!(
            "{name:?} is neither a file or folder here nor a valid hub name: {why}. Names look like org/name, \
             org/name:Q4_K_M or org/name@revision; `tallow search TEXT` finds short ones"
        )),
        other => other.into(),
    })?;
    if let Some(snapshot) = hub::cache()?.find(&model)? {
        return Ok(Checkpoint::open(&snapshot.path)?);
    }
    if let Some(why) = offline {
        return Err(Failed::new(format!(
            "{name} is not on this machine, and {why}. `tallow list` shows what is here"
        )));
    }
    let fetched = hub::fetch(&model);
    // The name may have been meant as a path.
    let fetched = fetched.map_err(|e| {
        Failed::new(format!("{name} is not a file or folder here, and could not be downloaded: {e}"))
    })?;
    Ok(Checkpoint::open(&fetched.path)?)
}

/// Opens a decoder model without its tokenizer; golden and benchmark models have none.
pub(crate) fn model(name: &str, how: OpenOptions) -> Result<Model, Failed> {
    let mut model = Model::new(checkpoint(name, how.offline)?)?;
    model.recipe = how.quant;
    quantized(&model).for_each(|note| note.show());
    Ok(model)
}

/// A decoder of random weights in the shape that `config` describes, a file or a folder with `config.json`.
pub(crate) fn like(config: &Path, sources: &Sources, quant: Option<Recipe>) -> Result<Model, Failed> {
    let quant = sources.find("quant", quant)?.map(|quant| quant.value);
    let file = if config.is_dir() { config.join("config.json") } else { config.to_owned() };
    let settings = tallow_checkpoint::read_json(&file)?;
    Ok(tallow_models::like(file.parent().unwrap_or(Path::new("")), settings, quant)?)
}

/// Notes on how the model is quantized on load.
pub(crate) fn quantized(model: &Model) -> impl Iterator<Item = Notice> {
    model.quantizing_notes().into_iter().map(Notice::Quantized)
}

/// Opens a model of any kind.
pub(crate) fn any(name: &str, how: OpenOptions) -> Result<AnyModel, Failed> {
    let mut model = AnyModel::new(checkpoint(name, how.offline)?)?;
    match &mut model {
        AnyModel::Decoder(model) => model.recipe = how.quant,
        AnyModel::Encoder(_) | AnyModel::Seq2Seq(_) => how.as_stored()?,
    }
    Ok(model)
}

/// Opens an encoder.
pub(crate) fn encoder(name: &str, how: OpenOptions) -> Result<EncoderModel, Failed> {
    how.as_stored()?;
    Ok(EncoderModel::new(checkpoint(name, how.offline)?)?)
}

/// Opens a seq2seq (encoder-decoder) model.
pub(crate) fn seq2seq(name: &str, how: OpenOptions) -> Result<Seq2SeqModel, Failed> {
    how.as_stored()?;
    Ok(Seq2SeqModel::new(checkpoint(name, how.offline)?)?)
}

/// Opens a decoder model. Its tokenizer and templates are read on first use: that takes a while, in which weights can
/// be loaded.
pub(crate) fn open(name: &str, how: OpenOptions) -> Result<LoadedModel, Failed> {
    decoder(name, model(name, how)?)
}

/// Does what [`open`] does, for a model that is already open.
pub(crate) fn decoder(name: &str, model: Model) -> Result<LoadedModel, Failed> {
    let generation = match model.generation() {
        Ok(generation) => generation,
        Err(why) => return Err(TextCodec::of(&model).err().unwrap_or(why.into())),
    };
    Ok(LoadedModel { name: short_name(name), model, draft: None, generation, text_codec: OnceLock::new() })
}

/// Opens a tokenizer alone; also of a file with nothing else, or of a family that is not supported.
pub(crate) fn tokenizer(name: &str, offline: Option<Offline>) -> Result<Tokenizer, Failed> {
    let checkpoint = checkpoint(name, offline)?;
    Ok(match &checkpoint.settings {
        tallow_checkpoint::Settings::Gguf(meta) => Tokenizer::from_gguf(meta)?,
        tallow_checkpoint::Settings::Hf(_) => Tokenizer::from_folder(&checkpoint.path)?,
    })
}

impl LoadedModel {
    /// With the draft model that the user has chosen, if any.
    pub(crate) fn with_draft(
        self,
        sources: &Sources,
        flag: Option<String>,
        how: OpenOptions,
    ) -> Result<LoadedModel, Failed> {
        let Some(chosen) = sources.find("draft", flag)? else { return Ok(self) };
        let refused = |why: &str| Failed::new(format!("draft model {}: {why}", chosen.value));
        let draft = model(&chosen.value, how).map_err(|e| refused(&e.to_string()))?;
        if draft.spec.is_recurrent() {
            let why =
                "models with recurrent state do not draft for others; take one without, or leave --draft out";
            return Err(refused(why));
        }
        let ours = &self.text_codec()?.tokenizer;
        let theirs = draft.tokenizer().map_err(|e| refused(&e.to_string()))?;
        // Vocabularies may be padded to different sizes.
        let shared = 0..ours.vocab_size().min(theirs.vocab_size()) as u32;
        let text = |of: &Tokenizer, id| {
            String::from_utf8_lossy(&of.token_bytes(id).unwrap_or_default()).into_owned()
        };
        if let Some(id) = shared.into_iter().find(|id| ours.token_bytes(*id) != theirs.token_bytes(*id)) {
            return Err(refused(&format!(
                "its vocabulary is another: token {id} is {:?}, and {:?} in {}. Take a smaller model of the same family",
                text(&theirs, id),
                text(ours, id),
                self.name
            )));
        }
        Ok(LoadedModel { draft: Some(draft), ..self })
    }

    /// With the chat template of a file in place of its own, if there is one.
    pub(crate) fn with_template(self, file: Option<&Path>) -> Result<LoadedModel, Failed> {
        let Some(file) = file else { return Ok(self) };
        let unread = |e| Failed::new(format!("{}: {}", file.display(), unreadable(&e)));
        let source = std::fs::read_to_string(file).map_err(unread)?;
        let TextCodec { tokenizer, .. } = self.text_codec()?.clone();
        let templates = Some(ChatTemplates::from_source(file, &source, &tokenizer)?);
        Ok(LoadedModel { text_codec: OnceLock::from(TextCodec { tokenizer, templates }), ..self })
    }

    /// Tokenizer and chat templates, read on first use.
    pub(crate) fn text_codec(&self) -> Result<&TextCodec, Failed> {
        if let Some(codec) = self.text_codec.get() {
            return Ok(codec);
        }
        let codec = TextCodec::of(&self.model)?;
        Ok(self.text_codec.get_or_init(|| codec))
    }

    /// Returns `done`; but if that failed and the tokenizer cannot be read either, the tokenizer's error, so that the
    /// error does not depend on which of the two came first.
    pub(crate) fn after_text_codec<T>(&self, done: Result<T, Failed>) -> Result<T, Failed> {
        done.or_else(|why| self.text_codec().and(Err(why)))
    }
}
