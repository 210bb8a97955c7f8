//! Names of models, as users type them and as clients know them.

use std::ffi::OsStr;
use std::path::Path;

use tallow_hub::ModelRef;

/// Name of the model that is embedded in the program.
pub(crate) const DEMO: &str = "demo";

/// True if the word can hardly be anything but a model.
pub(crate) fn is_model(word: &OsStr) -> bool {
    let path = Path::new(word);
    let known = |text: &str| text == DEMO || tallow_hub::is_alias(text);
    let on_disk = || {
        path.is_dir() && path.join("config.json").exists()
            || path.extension().is_some_and(|e| e == "gguf") && path.exists()
    };
    word.to_str().is_some_and(known) || on_disk()
}

/// A model's name as clients know it: without folders (of a path on disk) and `.gguf`.
pub(crate) fn short_name(name: &str) -> String {
    let path = Path::new(name);
    let on_disk = path.exists();
    let last = path.file_name().map(|n| n.to_string_lossy().into_owned()).filter(|_| on_disk);
    let last = last.unwrap_or_else(|| name.to_owned());
    last.strip_suffix(".gguf").map_or(last.clone(), str::to_owned)
}

/// True if two names mean the same model.
pub(crate) fn is_same(a: &str, b: &str) -> bool {
    let on_hub = |name: &str| ModelRef::parse(name).ok();
    short_name(b) == a || on_hub(a).is_some_and(|a| on_hub(b) == Some(a))
}
