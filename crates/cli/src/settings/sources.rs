//! [`Sources`]: lookup of settings in flags, the environment and the configuration file.

use std::any::Any;
use std::fmt;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::{Path, PathBuf};
use std::str::{FromStr, ParseBoolError};

use toml::{Table, Value};

use super::{KNOWN, Origin, Setting, variable};
use crate::model_name::is_same;
use crate::{Failed, env};

/// Name of the table that has the settings of single models.
const MODELS: &str = "models";

/// Sources in which settings are looked up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The configuration file, and the file of a server's models in front of it.
    files: Vec<File>,
}

/// A configuration file: settings for all models, and `[models."NAME"]` tables for single ones, which take precedence.
#[derive(Clone, Debug)]
struct File {
    path: PathBuf,
    all: Table,
    /// Settings of the chosen model.
    own: Option<(String, Table)>,
}

impl Sources {
    /// Reads the configuration file: the named one, or the default one if it exists.
    pub(crate) fn read(named: Option<&Path>) -> Result<Sources, Failed> {
        let named = named.map(Path::to_path_buf).or_else(|| env::get("TALLOW_CONFIG").map(PathBuf::from));
        let path = named.clone().or_else(|| env::config_file().filter(|p| p.exists()));
        let Some(path) = path else { return Ok(Sources::default()) };
        Ok(Sources { files: vec![File::read("the configuration file", path)?] })
    }

    /// The same with a file of a server's models, whose settings precede those of the configuration file. Returns the models'
    /// names too.
    pub(crate) fn with_models(mut self, path: PathBuf) -> Result<(Sources, Vec<String>), Failed> {
        let file = File::read("the file of models", path)?;
        let names = match file.all.get(MODELS) {
            Some(Value::Table(models)) if !models.is_empty() => models.keys().cloned().collect(),
            _ => {
                let why = "has no models: each has a table [models.\"NAME\"], with `model` if NAME is one of your own";
                return Err(Failed::new(format!("{} {why}", file.path.display())));
            }
        };
        self.files.insert(0, file);
        Ok((self, names))
    }

    /// The configuration file, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.files.last().map(|file| file.path.as_path())
    }

    /// Description of the configuration file, for users who ask where settings come from.
    pub(crate) fn described(&self) -> String {
        match (self.file(), env::config_file()) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(path)) => format!("none; it would be {}", path.display()),
            (None, None) => "none; set HOME, or name one by --config".into(),
        }
    }

    /// Selects the file's settings for a model, by the name that the user typed. A user-defined name, which is one
    /// whose table has a `model`, is replaced by that model.
    pub(crate) fn choose(&mut self, model: &mut String) -> Result<(), Failed> {
        for file in &mut self.files {
            file.choose(model)?;
        }
        Ok(())
    }

    /// Value of a setting: from the flag, else the environment, else the file.
    pub(crate) fn find<T: FromStr>(&self, name: &str, flag: Option<T>) -> Result<Option<Setting<T>>, Failed>
    where
        T::Err: fmt::Display + 'static,
    {
        debug_assert!(KNOWN.iter().any(|s| s.name == name), "{name} is not in the list of settings");
        if let Some(value) = flag {
            return Ok(Some(Setting { value, origin: Origin::Flag }));
        }
        let variable = variable(name);
        if let Some(text) = env::get(&variable) {
            let value = text
                .parse::<T>()
                .map_err(|e| Failed::new(format!("{variable} is {text:?}: {}", reason(&e))))?;
            return Ok(Some(Setting { value, origin: Origin::Environment(variable) }));
        }
        let Some((value, origin)) = self.in_file(name) else { return Ok(None) };
        let read = text_of(value).and_then(|text| text.parse::<T>().map_err(|e| reason(&e)));
        let value = read.map_err(|why| wrong(&format!("{origin}: {name}"), value, &why))?;
        Ok(Some(Setting { value, origin }))
    }

    /// As [`find`](Self::find), for settings with several values: from the flags, else the environment
    /// (comma-separated), else the file (a list or one value).
    pub(crate) fn list<T: FromStr>(&self, name: &str, flags: Vec<T>) -> Result<Vec<T>, Failed>
    where
        T::Err: fmt::Display + 'static,
    {
        debug_assert!(KNOWN.iter().any(|s| s.name == name), "{name} is not in the list of settings");
        if !flags.is_empty() {
            return Ok(flags);
        }
        let variable = variable(name);
        if let Some(text) = env::get(&variable) {
            let one = |text: &str| {
                text.trim()
                    .parse::<T>()
                    .map_err(|e| Failed::new(format!("{variable} is {text:?}: {}", reason(&e))))
            };
            return text.split(',').map(one).collect();
        }
        let Some((value, origin)) = self.in_file(name) else { return Ok(Vec::new()) };
        let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let one = |value: &Value| {
            let read = text_of(value).and_then(|text| text.parse::<T>().map_err(|e| reason(&e)));
            read.map_err(|why| wrong(&format!("{origin}: {name}"), value, &why))
        };
        all.iter().map(one).collect()
    }

    fn in_file(&self, name: &str) -> Option<(&Value, Origin)> {
        self.files.iter().find_map(|file| {
            let own = file.own.as_ref().and_then(|(model, own)| Some((own.get(name)?, Some(model.clone()))));
            let (value, model) = own.or_else(|| Some((file.all.get(name)?, None)))?;
            Some((value, Origin::File(file.path.clone(), model)))
        })
    }

    /// As [`find`](Self::find), else the built-in default.
    pub(crate) fn get<T: FromStr>(
        &self,
        name: &str,
        flag: Option<T>,
        default: T,
    ) -> Result<Setting<T>, Failed>
    where
        T::Err: fmt::Display + 'static,
    {
        Ok(self.find(name, flag)?.unwrap_or(Setting { value: default, origin: Origin::BuiltIn }))
    }

    /// As [`get`](Self::get); the model's own value precedes the built-in default.
    pub(super) fn or_model<T: FromStr>(
        &self,
        name: &str,
        flag: Option<T>,
        model: Option<T>,
        default: T,
    ) -> Result<Setting<T>, Failed>
    where
        T::Err: fmt::Display + 'static,
    {
        let model = model.map(|value| Setting { value, origin: Origin::Model });
        Ok(self.find(name, flag)?.or(model).unwrap_or(Setting { value: default, origin: Origin::BuiltIn }))
    }
}

impl File {
    fn read(what: &str, path: PathBuf) -> Result<File, Failed> {
        let text = std::fs::read_to_string(&path).map_err(|e| {
            let why = unreadable(&e);
            Failed::new(format!("{what} {} cannot be read: {why}", path.display()))
        })?;
        let all: Table =
            text.parse().map_err(|e| Failed::new(format!("{what} {} is not TOML: {e}", path.display())))?;
        check(&path, "", all.iter().filter(|(key, _)| *key != MODELS))?;
        let models = match all.get(MODELS) {
            None => &Table::new(),
            Some(Value::Table(models)) => models,
            Some(_) => return Err(wrong_table(&path, MODELS)),
        };
        for (model, own) in models {
            let name = format!("[models.{model:?}] ");
            let own = own.as_table().ok_or_else(|| wrong_table(&path, &name))?;
            check(&path, &name, own.iter())?;
        }
        Ok(File { path, all, own: None })
    }

    /// Selects the settings for a model, and replaces a user-defined name.
    fn choose(&mut self, model: &mut String) -> Result<(), Failed> {
        // Those of another model do not concern it.
        self.own = None;
        let Some(Value::Table(models)) = self.all.get(MODELS) else { return Ok(()) };
        let exact = models.get_key_value(model.as_str());
        let Some((name, Value::Table(own))) =
            exact.or_else(|| models.iter().find(|(name, _)| is_same(name, model)))
        else {
            return Ok(());
        };
        self.own = Some((name.clone(), own.clone()));
        if let Some(meant) = own.get("model") {
            let what = || {
                wrong(
                    &format!("{}: [models.{name:?}] model", self.path.display()),
                    meant,
                    "a model's name is expected",
                )
            };
            *model = meant.as_str().ok_or_else(what)?.to_owned();
        }
        Ok(())
    }
}

/// Rejects keys that are no settings.
fn check<'a>(
    path: &Path,
    table: &str,
    mut keys: impl Iterator<Item = (&'a String, &'a Value)>,
) -> Result<(), Failed> {
    let Some((unknown, _)) = keys.find(|(key, _)| KNOWN.iter().all(|s| s.name != key.as_str())) else {
        return Ok(());
    };
    let names: Vec<&str> = KNOWN.iter().map(|s| s.name).collect();
    let (path, names) = (path.display(), names.join(", "));
    Err(Failed::new(format!("{path}: {table}there is no setting {unknown:?}; there are: {names}")))
}

fn wrong_table(path: &Path, name: &str) -> Failed {
    let why = "is no table; settings of a model stand below [models.\"NAME\"]";
    Failed::new(format!("{}: {} {why}", path.display(), name.trim()))
}

fn wrong(what: &str, value: &Value, why: &str) -> Failed {
    Failed::new(format!("{what} is {value}: {why}"))
}

/// A TOML value as it would be typed.
fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok(value.to_string()),
        _ => Err("one value is expected".into()),
    }
}

/// Why a value cannot be parsed, for users.
pub(crate) fn reason<E: fmt::Display + 'static>(why: &E) -> String {
    let any: &dyn Any = why;
    if let Some(why) = any.downcast_ref::<ParseIntError>() {
        return match why.kind() {
            IntErrorKind::Empty => "it is empty; a whole number is expected",
            IntErrorKind::PosOverflow => "the number is too large",
            IntErrorKind::NegOverflow => "the number is too small",
            _ => "a whole number from 0 up is expected",
        }
        .into();
    }
    if any.is::<ParseFloatError>() {
        return "a number such as 0.7 is expected".into();
    }
    if any.is::<ParseBoolError>() {
        return "true or false is expected".into();
    }
    why.to_string()
}

/// Why a file cannot be read, for users.
pub(crate) fn unreadable(why: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match why.kind() {
        ErrorKind::NotFound => "there is no such file or folder".into(),
        ErrorKind::PermissionDenied => "permission denied".into(),
        ErrorKind::IsADirectory => "it is a folder".into(),
        _ => why.to_string(),
    }
}

/// A boolean setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch(pub bool);

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Switch, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(Switch(true)),
            "false" | "0" | "no" | "off" => Ok(Switch(false)),
            _ => Err("true or false is expected".into()),
        }
    }
}

/// Random seed; -1 is a random one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub u64);

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Seed, String> {
        match text.trim() {
            "-1" => Ok(Seed(super::random())),
            text => text.parse().map(Seed).map_err(|why| match reason(&why) {
                why if why.contains("from 0 up") => {
                    "a whole number is expected, or -1 for a random one".into()
                }
                why => why,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_said_in_our_words() {
        let int = |text: &str| reason(&text.parse::<u16>().unwrap_err());
        assert_eq!(int("many"), "a whole number from 0 up is expected");
        assert_eq!(int("-1"), "a whole number from 0 up is expected");
        assert_eq!(int(""), "it is empty; a whole number is expected");
        assert_eq!(int("70000"), "the number is too large");
        assert_eq!(reason(&"".parse::<f32>().unwrap_err()), "a number such as 0.7 is expected");
        assert_eq!(reason(&"x".parse::<bool>().unwrap_err()), "true or false is expected");
        assert_eq!(reason(&String::from("as it was")), "as it was");
        assert_eq!("7".parse::<Seed>(), Ok(Seed(7)));
        assert!("-1".parse::<Seed>().is_ok() && "-2".parse::<Seed>().is_err());
        assert_eq!("ON".parse::<Switch>(), Ok(Switch(true)));
    }
}
