//! Environment variables, which are read here and nowhere else.

use std::path::{Path, PathBuf};

/// A variable that is read, and what it does.
pub(crate) struct Variable {
    pub name: &'static str,
    pub does: &'static str,
}

const fn variable(name: &'static str, does: &'static str) -> Variable {
    Variable { name, does }
}

/// Our variables that are no settings (each setting has one of its own), and those of other programs.
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
    variable("HTTPS_PROXY", "proxy for downloads: http:// or socks5:// (also `https_proxy`)"),
    variable("ALL_PROXY", "proxy for downloads, if HTTPS_PROXY does not say (also `all_proxy`)"),
    variable("NO_PROXY", "hosts that are reached without the proxy (also `no_proxy`)"),
    variable("CUDA_VISIBLE_DEVICES", "NVIDIA's GPUs that its driver shows to programs: numbers or UUIDs"),
    variable("NO_COLOR", "set to anything: no colours"),
    variable("TERM", "`dumb`: no colours, and no line editing in chats"),
    variable("HOME", "where the folders below are, if they are not set"),
    variable("XDG_CACHE_HOME", "where caches are kept"),
    variable("XDG_CONFIG_HOME", "where configuration is kept"),
    variable(
        "XDG_RUNTIME_DIR",
        "if it is not set, there is no desktop, and drivers are told not to look for one",
    ),
    variable("XDG_STATE_HOME", "where the chat's line history is kept"),
];

/// Value of a variable; an empty one is treated as unset.
pub(crate) fn get(name: &str) -> Option<String> {
    get_as_set(name).filter(|v| !v.is_empty())
}

/// Value of a variable for which an empty one means something.
pub(crate) fn get_as_set(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// All variables that are set, of these and those of `settings`. Secrets are masked.
pub(crate) fn set(settings: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let names = VARIABLES.iter().map(|v| v.name.to_owned()).chain(settings);
    let told = |name: &str, value: String| match name {
        "TALLOW_API_KEY" | "HF_TOKEN" => "(set)".into(),
        // Proxy URLs can contain a password.
        _ if name.ends_with("_PROXY") && value.contains('@') => "(set)".into(),
        _ => value,
    };
    names
        .filter_map(|name| Some((told(&name, get(&name)?), name)))
        .map(|(value, name)| (name, value))
        .collect()
}

/// Turns off Mesa's device selection layer where there is no desktop: Mesa loads it into every program, and it
/// complains if it finds no desktop. We choose the GPU ourselves.
///
/// # Safety
///
/// No other thread may be running.
pub(crate) unsafe fn quiet_drivers() {
    if get("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: the caller guarantees that no other thread runs, so none accesses the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// As [`get`], with the name as it is or in lower case.
fn either(name: &str) -> Option<String> {
    get(name).or_else(|| get(&name.to_lowercase()))
}

/// A folder that a variable names, else one under the home folder.
fn folder(name: &str, under_home: &str) -> Option<PathBuf> {
    get(name).map(PathBuf::from).or_else(|| Some(PathBuf::from(get("HOME")?).join(under_home)))
}

/// A path with `~/` expanded to the home folder.
pub(crate) fn expand(name: &str) -> PathBuf {
    match (name.strip_prefix("~/"), get("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(name),
    }
}

/// File of the running program.
pub(crate) fn program() -> std::io::Result<PathBuf> {
    // On Linux also after it was replaced, as the system's package manager may do.
    let own = Path::new("/proc/self/exe");
    if own.exists() { Ok(own.into()) } else { std::env::current_exe() }
}

/// Default path of the configuration file.
pub(crate) fn config_file() -> Option<PathBuf> {
    Some(folder("XDG_CONFIG_HOME", ".config")?.join("tallow").join("config.toml"))
}

/// File with the line history of chats.
pub(crate) fn line_history() -> Option<PathBuf> {
    Some(folder("XDG_STATE_HOME", ".local/state")?.join("tallow").join("lines"))
}

/// Folder of packed weights.
pub(crate) fn packed_weights() -> Option<PathBuf> {
    Some(folder("XDG_CACHE_HOME", ".cache")?.join("tallow").join("packed"))
}

/// Folder of downloaded models.
pub(crate) fn hub_cache() -> Option<PathBuf> {
    let home = || Some(folder("XDG_CACHE_HOME", ".cache")?.join("huggingface"));
    get("HF_HUB_CACHE").map(PathBuf::from).or_else(|| Some(hf_home().or_else(home)?.join("hub")))
}

fn hf_home() -> Option<PathBuf> {
    get("HF_HOME").map(PathBuf::from)
}

/// The hub's token: from a variable, else from the file where other programs store it.
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

/// The proxy with the name of its variable, and the hosts that are reached without it.
pub(crate) fn proxy() -> (Option<(&'static str, String)>, Vec<String>) {
    let hosts = either("NO_PROXY").unwrap_or_default();
    let hosts = hosts.split(',').map(str::trim).filter(|h| !h.is_empty()).map(str::to_owned).collect();
    let proxy = ["HTTPS_PROXY", "ALL_PROXY"].into_iter().find_map(|name| Some((name, either(name)?)));
    (proxy, hosts)
}
