//! The environment, read here and nowhere else.

use std::path::PathBuf;

/// A variable that we read, and what it does.
pub(crate) struct Variable {
    pub name: &'static str,
    pub does: &'static str,
}

const fn variable(name: &'static str, does: &'static str) -> Variable {
    Variable { name, does }
}

/// Variables of our own that are not a setting (each setting has one: see [`crate::settings`]), and those of others.
pub(crate) static VARIABLES: &[Variable] = &[
    variable("TALLOW_CONFIG", "path of the configuration file"),
    variable(
        "TALLOW_API_KEY",
        "the key that clients of the server must give; several are separated by commas",
    ),
    variable("TALLOW_LOG", "what to log, such as `debug` or `info,tallow_server=debug`"),
    variable("TALLOW_LOG_FORMAT", "how to write the log: `plain` or `json`"),
    variable("HF_HOME", "where the Hugging Face cache lies, if HF_HUB_CACHE does not say"),
    variable("HF_HUB_CACHE", "where downloaded models are kept"),
    variable("HF_TOKEN", "token for models that are not open to all"),
    variable("HF_TOKEN_PATH", "file with that token"),
    variable("HF_ENDPOINT", "the hub's address"),
    variable("HF_HUB_OFFLINE", "`1`: never ask the hub"),
    variable("HTTPS_PROXY", "proxy for downloads (also `https_proxy`)"),
    variable("ALL_PROXY", "proxy for downloads, if HTTPS_PROXY does not say (also `all_proxy`)"),
    variable("NO_PROXY", "hosts that are reached without the proxy (also `no_proxy`)"),
    variable("NO_COLOR", "set to anything: no colours"),
    variable("HOME", "where the folders below are, if they are not set"),
    variable("XDG_CACHE_HOME", "where caches are kept"),
    variable("XDG_CONFIG_HOME", "where configuration is kept"),
    variable(
        "XDG_RUNTIME_DIR",
        "if it is not set, there is no desktop, and drivers are told not to look for one",
    ),
    variable("XDG_STATE_HOME", "where the chat's line history is kept"),
];

/// A variable's value; an empty one counts as none.
pub(crate) fn get(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// Our variables and others that we read, as far as they are set. Secrets are not told.
pub(crate) fn set() -> Vec<(String, String)> {
    let ours = crate::settings::KNOWN.iter().map(crate::settings::Known::variable);
    let names = VARIABLES.iter().map(|v| v.name.to_owned()).chain(ours);
    let told = |name: &str, value: String| match name {
        "TALLOW_API_KEY" | "HF_TOKEN" => "(set)".into(),
        // Proxies can have a password in them.
        _ if name.ends_with("_PROXY") && value.contains('@') => "(set)".into(),
        _ => value,
    };
    names
        .filter_map(|name| Some((told(&name, get(&name)?), name)))
        .map(|(value, name)| (name, value))
        .collect()
}

/// Without a desktop, a layer that Mesa puts into every program looks for one, and complains to whoever is there.
/// Choosing a GPU is ours to do, so the layer can stay away.
///
/// # Safety
///
/// No other thread may run yet.
pub(crate) unsafe fn quiet_drivers() {
    if get("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: passed on to the caller.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// The same, under its usual name or in lower case.
fn either(name: &str) -> Option<String> {
    get(name).or_else(|| get(&name.to_lowercase()))
}

/// A folder that a variable names, or one under the home folder.
fn folder(name: &str, under_home: &str) -> Option<PathBuf> {
    get(name).map(PathBuf::from).or_else(|| Some(PathBuf::from(get("HOME")?).join(under_home)))
}

/// Where the configuration file is, if nobody says.
pub(crate) fn config_file() -> Option<PathBuf> {
    Some(folder("XDG_CONFIG_HOME", ".config")?.join("tallow").join("config.toml"))
}

/// Where the lines that were typed into chats are kept.
pub(crate) fn line_history() -> Option<PathBuf> {
    Some(folder("XDG_STATE_HOME", ".local/state")?.join("tallow").join("lines"))
}

/// Where downloaded models are kept, if nobody says.
pub(crate) fn hub_cache() -> Option<PathBuf> {
    let home = || Some(folder("XDG_CACHE_HOME", ".cache")?.join("huggingface"));
    get("HF_HUB_CACHE").map(PathBuf::from).or_else(|| Some(hf_home().or_else(home)?.join("hub")))
}

fn hf_home() -> Option<PathBuf> {
    get("HF_HOME").map(PathBuf::from)
}

/// The hub's token: from a variable, or from the file where other programs leave it.
pub(crate) fn hub_token() -> Option<String> {
    let file = || {
        let home = || Some(folder("XDG_CACHE_HOME", ".cache")?.join("huggingface"));
        let path = get("HF_TOKEN_PATH")
            .map(PathBuf::from)
            .or_else(|| Some(hf_home().or_else(home)?.join("token")))?;
        std::fs::read_to_string(path).ok()
    };
    let token = get("HF_TOKEN").or_else(file)?;
    Some(token.trim().to_owned()).filter(|t| !t.is_empty())
}

/// Proxy and the hosts that are reached without it.
pub(crate) fn proxy() -> (Option<String>, Vec<String>) {
    let hosts = either("NO_PROXY").unwrap_or_default();
    let hosts = hosts.split(',').map(str::trim).filter(|h| !h.is_empty()).map(str::to_owned).collect();
    (either("HTTPS_PROXY").or_else(|| either("ALL_PROXY")), hosts)
}
