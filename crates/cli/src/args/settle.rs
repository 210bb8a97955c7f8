//! Completes the command line with what the environment and the configuration file say of models.

use super::{Command, Run, Serve};
use crate::Failed;
use crate::lora::Lora;
use crate::settings::{Setting, Sources};

impl Command {
    /// Resolves which model is meant. From here on `sources` has the configuration file's settings for it.
    pub(crate) fn settle(&mut self, sources: &mut Sources) -> Result<(), Failed> {
        let model = match self {
            Command::Run(args) => return args.settle(sources),
            Command::Serve(args) => return args.settle(sources),
            Command::Doctor(args) => {
                return args.model.as_mut().map_or(Ok(()), |model| sources.choose(model));
            }
            Command::Bench(args) => match args.model.as_mut_slice() {
                [model] => model,
                _ => return Ok(()),
            },
            Command::Pull(args) => &mut args.model,
            Command::Rm(args) => &mut args.model,
            Command::Show(args) => &mut args.model,
            Command::Convert(args) => &mut args.model,
            Command::Pack(args) => &mut args.model,
            Command::Embed(args) => &mut args.model,
            Command::Rerank(args) => &mut args.model,
            Command::Classify(args) => &mut args.model,
            Command::Transcribe(args) => &mut args.model,
            Command::Tokenize(args) => &mut args.model,
            Command::Perplexity(args) => &mut args.model,
            Command::Imatrix(args) => &mut args.model,
            Command::Dump(args) => &mut args.model,
            Command::Schema(_)
            | Command::Ps(_)
            | Command::Stop(_)
            | Command::Replay(_)
            | Command::Search(_)
            | Command::List(_)
            | Command::Parse(_)
            | Command::Completions(_) => {
                return Ok(());
            }
        };
        sources.choose(model)
    }
}

impl Run {
    fn settle(&mut self, sources: &mut Sources) -> Result<(), Failed> {
        choose(&mut self.model, sources)?;
        self.prompt.extend(self.text.take());
        self.system = sources.find("system", self.system.take())?.map(|system| system.value);
        let mut loras: Vec<Lora> = sources.list("lora", self.lora.take().into_iter().collect())?;
        if loras.len() > 1 {
            let why = "lora names several adapters, and `tallow run` takes one: choose it by --lora";
            return Err(Failed::new(why));
        }
        self.lora = loras.pop();
        Ok(())
    }
}

impl Serve {
    fn settle(&mut self, sources: &mut Sources) -> Result<(), Failed> {
        if self.model.is_empty() && self.models_file.is_none() && !self.on_demand {
            self.model.extend(sources.find("model", None)?.map(|model: Setting<String>| model.value));
        }
        // The settings of several models are looked up for each of them.
        if let ([model], None) = (self.model.as_mut_slice(), &self.models_file) {
            sources.choose(model)?;
            self.alias = sources.list("alias", std::mem::take(&mut self.alias))?;
            self.lora = sources.list("lora", std::mem::take(&mut self.lora))?;
        }
        Ok(())
    }
}

/// Resolves the model of a command that has a default one.
fn choose(model: &mut Option<String>, sources: &mut Sources) -> Result<(), Failed> {
    *model = sources.find("model", model.take())?.map(|model| model.value);
    model.as_mut().map_or(Ok(()), |model| sources.choose(model))
}
