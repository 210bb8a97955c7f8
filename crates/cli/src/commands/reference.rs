//! The reference: every command, flag, setting, variable and endpoint, generated from their declarations.

use std::fmt::Write;

use clap::{Arg, Command};

use crate::args;
use crate::env::VARIABLES;
use crate::settings::KNOWN;

/// The reference as Markdown.
pub(crate) fn reference() -> String {
    let mut text = String::from(
        "# Reference\n\nWritten by `tallow doctor --reference`; a test compares the two.\n\n\
         A setting is looked up in this order: flag, variable, configuration file (`~/.config/tallow/config.toml`, or \
         the one that `--config` names), the model's own (`generation_config.json`, or `general.sampling` keys in a GGUF file), what is built in. `tallow doctor` \
         shows where each value comes from.\n\n## Settings\n\n\
         | in the configuration file | flag | variable | what it is | built in |\n|---|---|---|---|---|\n",
    );
    for known in KNOWN {
        let (name, does, default) = (known.name, known.does, known.default);
        let _ = writeln!(text, "| `{name}` | `--{name}` | `{}` | {does} | {default} |", known.variable());
    }
    text += "\nIn the file, `[models.\"NAME\"]` has settings of one model, which come before those for all. NAME is the model as \
             it is\nnamed on the command line, or a name of your own: then `model` in that table says what it stands for.\n";
    text += "\n## Variables\n\n| variable | what it is |\n|---|---|\n";
    for variable in VARIABLES {
        let _ = writeln!(text, "| `{}` | {} |", variable.name, variable.does);
    }
    text += "\n## Endpoints\n\nWhat `tallow serve` answers, and for which kinds of model.\n\n";
    text += &tallow_server::endpoints_as_markdown();
    let mut cli = args::command();
    cli.build();
    text += "\n## Commands\n";
    for command in cli.get_subcommands().filter(|c| c.get_name() != "help") {
        one(&mut text, "tallow", command);
    }
    text
}

/// A command, and the commands of it.
fn one(text: &mut String, parent: &str, command: &Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let name = format!("{parent} {}", command.get_name());
    let _ = write!(text, "\n### {name}\n\n{about}.\n\n| argument | what it does |\n|---|---|\n");
    for arg in command.get_arguments().filter(|a| a.get_id() != "help") {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "| {} | {} |", named(arg), help.replace('|', "\\|"));
    }
    for command in command.get_subcommands().filter(|c| c.get_name() != "help") {
        one(text, &name, command);
    }
}

/// `` `-t`, `--threads` `N` ``
fn named(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    let takes = arg.get_action().takes_values();
    if arg.is_positional() {
        return format!("`{values}`");
    }
    let short = arg.get_short().map(|c| format!("`-{c}`"));
    let long = arg.get_long().map(|name| format!("`--{name}`"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    if takes { format!("{} `{values}`", names.join(", ")) } else { names.join(", ") }
}
