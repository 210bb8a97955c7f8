//! [`ModelSource`]: a model that is to be served, and the settings for it.

use tallow_server::ModelEntry;

use crate::Failed;
use crate::args::Serve;
use crate::lora::Lora;
use crate::model_name::{DEMO, short_name};
use crate::settings::Sources;

/// A model to be served.
#[derive(Clone, Debug)]
pub(super) struct ModelSource {
    /// Name by which it is opened.
    pub(super) model: String,
    /// Names by which clients know it, the primary one first.
    pub(super) names: Vec<String>,
    pub(super) lora: Vec<Lora>,
    pub(super) settings: Sources,
    /// Number of models that share the memory with it, itself included.
    pub(super) models: usize,
    /// True if it is one of the downloaded models, and nothing is to be downloaded.
    pub(super) is_cached: bool,
}

/// The models that are named on the command line, or in the file of models.
pub(super) fn of(args: &Serve, sources: &Sources) -> Result<Vec<ModelSource>, Failed> {
    if let Some(file) = &args.models_file {
        let (sources, names) = sources.clone().with_models(file.clone())?;
        check_flags(args)?;
        let models = names.len();
        return names.into_iter().map(|name| ModelSource::new(&name, models, &sources)).collect();
    }
    match args.model.as_slice() {
        [] if args.on_demand => {
            check_flags(args)?;
            Ok(Vec::new())
        }
        names @ ([] | [_]) => {
            // Its settings were chosen when the command line was read.
            let model = names.first().map_or(DEMO, String::as_str).to_owned();
            let names = std::iter::once(short_name(&model)).chain(args.alias.iter().cloned()).collect();
            let (lora, settings) = (args.lora.clone(), sources.clone());
            Ok(vec![ModelSource { model, names, lora, settings, models: 1, is_cached: false }])
        }
        names => {
            check_flags(args)?;
            let one = |name: &String| ModelSource::new(name, names.len(), sources);
            names.iter().map(one).collect()
        }
    }
}

impl ModelSource {
    /// A model by the name that a user gave it.
    pub(super) fn new(name: &str, models: usize, sources: &Sources) -> Result<ModelSource, Failed> {
        let (mut model, mut settings) = (name.to_owned(), sources.clone());
        settings.choose(&mut model)?;
        let mut names = vec![short_name(name)];
        for alias in settings.list("alias", Vec::new())? {
            if !names.contains(&alias) {
                names.push(alias);
            }
        }
        let lora = settings.list("lora", Vec::new())?;
        Ok(ModelSource { model, names, lora, settings, models, is_cached: false })
    }
}

/// Refuses flags that are for one model where there are several.
fn check_flags(args: &Serve) -> Result<(), Failed> {
    let flags = [
        ("--alias", !args.alias.is_empty()),
        ("--lora", !args.lora.is_empty()),
        ("--chat-template", args.chat_template.is_some()),
        ("--tool-format", args.tool_format.is_some()),
        ("--draft", args.engine.draft.is_some()),
        ("--cache-disk", args.cache_disk.is_some()),
    ];
    match flags.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((flag, _)) => {
            let setting = flag.trim_start_matches('-');
            Err(Failed::new(format!(
                "{flag} is for one model, and there are several: write `{setting} = …` below [models.\"NAME\"] in a file, \
                 and start `tallow serve --models FILE`"
            )))
        }
    }
}

/// Refuses names that two models have.
pub(super) fn check_names(entries: &[ModelEntry]) -> Result<(), Failed> {
    let names: Vec<&String> = entries.iter().flat_map(|entry| &entry.names).collect();
    let again = (1..names.len()).find(|i| names[..*i].contains(&names[*i]));
    match again {
        None => Ok(()),
        Some(i) => Err(Failed::new(format!(
            "two models are called {}: give them names of your own in a file, as [models.\"NAME\"] with \
             `model = …`, and start `tallow serve --models FILE`",
            names[i]
        ))),
    }
}
