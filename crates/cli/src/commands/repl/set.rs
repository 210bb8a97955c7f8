//! `/set` and `/show`: the settings of a chat.

use std::str::FromStr;

use tallow_text::reasoning::Effort;

use super::{Known, Repl, known, print};
use crate::chat::BASE_MODEL_WHY;
use crate::chat::flags::Think;
use crate::settings::random;
use crate::{Failed, terminal};

/// All settings of `/set`.
static SETTINGS: &[Known] = &[
    known("temperature", "X", "0 always picks the most likely token (greedy); also temp"),
    known("top-k", "N", "keep only the N most likely tokens; 0 keeps all"),
    known("top-p", "P", "keep the most likely tokens up to total probability P"),
    known("min-p", "P", "keep tokens at least P times as likely as the most likely one"),
    known("typical-p", "P", "locally typical sampling, up to total probability P"),
    known("repetition-penalty", "X", "1 is off"),
    known("presence-penalty", "X", "0 is off"),
    known("frequency-penalty", "X", "0 is off"),
    known("seed", "N", "-1 is another each time"),
    known("max-tokens", "N", "longest answer, in tokens; -1 as long as fits, or default; also num-predict"),
    known("context", "N", "tokens of the conversation; loads the model again; also ctx, num-ctx"),
    known("system", "TEXT", "system prompt; without a text none"),
    known("stop", "TEXT", "end answers at this text too; without a text at none"),
    known("think", "HOW", "let the model think: true, false, low, medium, high, default"),
    known("nothink", "", "the same as think false"),
    known("thinking-budget", "N", "most tokens of thinking; -1 is as many as the model likes"),
    known("verbose", "", "show how fast answers come; `quiet` does not"),
    known("quiet", "", ""),
];
/// Aliases from other programs.
static SYNONYMS: &[(&str, &str)] = &[
    ("temp", "temperature"),
    ("t", "temperature"),
    ("n", "max-tokens"),
    ("num-predict", "max-tokens"),
    ("n-predict", "max-tokens"),
    ("ctx", "context"),
    ("ctx-size", "context"),
    ("num-ctx", "context"),
    ("c", "context"),
    ("repeat-penalty", "repetition-penalty"),
    ("no-think", "nothink"),
    ("reasoning-budget", "thinking-budget"),
];

/// Names of all settings.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.name)
}

/// Help text of all settings.
pub(super) fn list() -> String {
    let shown = SETTINGS.iter().filter(|setting| !setting.does.is_empty());
    let line = |setting: &Known| {
        let typed = format!("{} {}", setting.name, setting.takes);
        format!("/set {typed:<22}  {}\n", setting.does)
    };
    shown.map(line).collect()
}

/// Parses a number, with an error for users.
fn number<T: FromStr>(name: &str, value: &str, what: &str) -> Result<T, Failed> {
    match value {
        "" => Err(Failed::new(format!("/set {name} needs a value: {what}"))),
        value => value.parse().map_err(|_| Failed::new(format!("{name} {value:?}: {what} is expected"))),
    }
}

impl Repl<'_> {
    pub(super) fn set(&mut self, line: &str) -> Result<(), Failed> {
        let split = |line: &str| -> (String, String) {
            let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            (name.to_lowercase().replace('_', "-"), value.trim().to_owned())
        };
        let (mut name, mut value) = split(line);
        // Ollama's `/set parameter NAME VALUE`.
        if name == "parameter" {
            (name, value) = split(&value);
        }
        let name = SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name.as_str(), |(_, name)| *name);
        // A text may be in quotes.
        let quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
        let text = if quoted { &value[1..value.len() - 1] } else { value.as_str() };
        match name {
            "system" => {
                self.talk.dialogue.system = Some(text.to_owned()).filter(|text| !text.is_empty());
                let set =
                    if text.is_empty() { "there is no system prompt" } else { "the system prompt is set" };
                print(&format!("{set}\n"))
            }
            "stop" => {
                match text {
                    "" => self.talk.stops.clear(),
                    text => self.talk.stops.push(text.to_owned()),
                }
                let stops = self.talk.stops.iter().map(|stop| format!("{stop:?}")).collect::<Vec<_>>();
                let stops = if stops.is_empty() { "no text".to_owned() } else { stops.join(" and ") };
                print(&format!("answers end at {stops}\n"))
            }
            "think" => self.think(&value),
            "nothink" => self.think("false"),
            "thinking-budget" => {
                let budget: i64 = number(name, &value, "a number of tokens")?;
                if !self.talk.dialogue.thinks() {
                    return Err(Failed::new("this model's chat template has no marks of thinking"));
                }
                self.talk.dialogue.thinking_budget = usize::try_from(budget).ok();
                print(&format!("thinking-budget is {}\n", budget.max(-1)))
            }
            "verbose" | "quiet" => {
                self.verbose = name == "verbose";
                print(if self.verbose { "speeds are shown\n" } else { "speeds are not shown\n" })
            }
            "context" => {
                let context = number(name, &value, "a number of tokens")?;
                self.set_context(context)?;
                print(&format!("context is {context}\n"))
            }
            "max-tokens" => {
                self.talk.max_tokens = match value.as_str() {
                    "default" => None,
                    // As many as fit.
                    "-1" => Some(usize::MAX),
                    value => Some(number(name, value, "a number of tokens, or `default`,")?),
                };
                print(&format!("max-tokens is {}\n", self.max_tokens()))
            }
            name => self.set_sampling(name, &value),
        }
    }

    fn set_sampling(&mut self, name: &str, value: &str) -> Result<(), Failed> {
        let mut changed = self.talk.sampling.clone();
        let real = || number::<f32>(name, value, "a number");
        match name {
            "temperature" => changed.temperature = real()?,
            "top-k" => changed.top_k = number(name, value, "a whole number")?,
            "top-p" => changed.top_p = real()?,
            "min-p" => changed.min_p = real()?,
            "typical-p" => changed.typical_p = real()?,
            "repetition-penalty" => changed.repetition_penalty = real()?,
            "presence-penalty" => changed.presence_penalty = real()?,
            "frequency-penalty" => changed.frequency_penalty = real()?,
            "seed" if value == "-1" => changed.seed = random(),
            "seed" => changed.seed = number(name, value, "a whole number")?,
            _ => {
                return Err(Failed::new(format!("there is no setting {name:?}; /set lists those there are")));
            }
        }
        self.setup.config.clone().with(&changed).check()?;
        self.talk.sampling = changed;
        print(&format!("{name} is {value}\n"))
    }

    fn think(&mut self, value: &str) -> Result<(), Failed> {
        let effort = match value {
            "default" => None,
            "" => Some(Effort::Medium),
            value => {
                Some(value.parse::<Think>().map_err(|e| Failed::new(format!("think {value:?}: {e}")))?.0)
            }
        };
        self.talk.dialogue.think(effort)?;
        print(&format!("think is {}\n", self.thinking()))
    }

    /// The reasoning effort, as shown.
    fn thinking(&self) -> &'static str {
        match self.talk.dialogue.effort() {
            None => "default",
            Some(Effort::None) => "false",
            Some(Effort::Medium) => "true",
            Some(effort) => effort.name(),
        }
    }

    fn max_tokens(&self) -> String {
        let talk = &self.talk;
        match (talk.max_tokens, talk.dialogue.has_template()) {
            (Some(usize::MAX), _) | (None, true) => "as many as fit".into(),
            (Some(most), _) => most.to_string(),
            (None, false) => format!("{}, {BASE_MODEL_WHY}", talk.most()),
        }
    }

    /// Text of `/show`: the settings and the conversation.
    pub(super) fn show(&self) -> String {
        let (s, talk) = (&self.talk.sampling, &self.talk);
        let dialogue = &talk.dialogue;
        let used = dialogue.tokens().map_or(0, |tokens| tokens.len());
        let mut text = format!(
            "temperature {}, top-k {}, top-p {}, min-p {}, typical-p {}\n\
             repetition-penalty {}, presence-penalty {}, frequency-penalty {}\n\
             seed {}, max-tokens {}\n\
             {used} of {} tokens of context used (the model's own limit is {})\n",
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p,
            s.typical_p,
            s.repetition_penalty,
            s.presence_penalty,
            s.frequency_penalty,
            s.seed,
            self.max_tokens(),
            talk.context(),
            talk.made_for(),
        );
        if let Some(effort) = dialogue.effort() {
            text += &format!("think {}\n", if effort == Effort::None { "false" } else { self.thinking() });
        }
        if let Some(tokens) = dialogue.thinking_budget {
            text += &format!("thinking-budget {tokens}\n");
        }
        if !talk.stops.is_empty() {
            text += &format!(
                "stop {}\n",
                talk.stops.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(" ")
            );
        }
        if let Some(system) = &dialogue.system {
            text += &format!("[system] {system}\n");
        }
        for (i, message) in dialogue.messages.iter().enumerate() {
            if i == dialogue.rolled && i > 0 {
                text += "(the model no longer sees what stands above)\n";
            }
            text += &format!("[{}] {}\n", message.role, message.content);
        }
        terminal::sanitized(&text).into_owned()
    }
}
