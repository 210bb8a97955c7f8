//! [`command`]: the clap command, with what its help texts take from other modules.

use std::any::TypeId;
use std::fmt::Write;
use std::str::FromStr;

use clap::{Arg, Command, CommandFactory};

use super::Cli;
use crate::env::VARIABLES;
use crate::settings::{Defaults, KNOWN, reason};

/// Id of the positional argument that is a model.
pub(super) const MODEL: &str = "model";
/// Id of `--model`. clap never fills it: [`rewrite`](super::rewrite) turns it into the first positional.
pub(super) const NAMED: &str = "named";

/// URL of the source, the documentation and the issue tracker.
const HOME: &str = env!("CARGO_PKG_REPOSITORY");

const MODELS: &str = "\
MODEL is one of
  ./model.gguf, ./folder          a GGUF file, or a Hugging Face folder with safetensors
  org/name, org/name:Q4_K_M       a name on the Hugging Face hub; :QUANT chooses a GGUF file
  https://huggingface.co/…        the same as a URL; hf.co/… too
  qwen3:4b, llama3.2, gemma3:4b   a short name (`tallow search TEXT` finds them)
  demo                            a small story teller that is part of the program";

const EXAMPLES: &str = "\
Examples:
  tallow run demo \"Once upon a time\"          a story; nothing to download
  tallow run qwen3:4b                         downloads once, then chats
  tallow run qwen3:4b \"Why is the sky blue?\"  one answer
  tallow serve qwen3:4b                       the OpenAI API at http://127.0.0.1:8080/v1
  tallow search gemma                         models and their sizes";

const FILES: &str = "\
Files:
  ~/.cache/huggingface/hub        downloaded models, shared with other programs (HF_HUB_CACHE)
  ~/.config/tallow/config.toml    settings (--config, TALLOW_CONFIG)
  ~/.local/state/tallow           line history of chats
  To uninstall, remove the program and the last two; `tallow rm NAME` removes a model.";

/// Examples of a command.
fn examples(command: &str) -> Option<&'static str> {
    Some(match command {
        "run" => {
            "Examples:
  tallow run demo \"Once upon a time\"
  tallow run qwen3:4b                              chat
  tallow run qwen3:4b --system \"Answer briefly.\" \"Why is the sky blue?\"
  tallow run -m ./model.gguf -f notes.txt \"Summarise this.\" -n 200
  cat notes.txt | tallow run ./model.gguf
  tallow run qwen3:4b --temperature 0 --seed 7 \"Name a colour.\""
        }
        "serve" => {
            "Examples:
  tallow serve qwen3:4b --port 8080
  tallow serve ./model.gguf --context 16384 --slots 4
  tallow serve qwen3:4b nomic-embed-text whisper:small
  TALLOW_API_KEY=secret tallow serve qwen3:4b --host 0.0.0.0 --allow-host my-machine
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'"
        }
        "pull" => {
            "Examples:
  tallow pull qwen3:4b
  tallow pull Qwen/Qwen3-4B-GGUF:Q8_0
  tallow pull https://huggingface.co/Qwen/Qwen3-4B-GGUF"
        }
        "ps" => "Examples:\n  tallow ps\n  tallow ps --port 9000 --json",
        "stop" => "Examples:\n  tallow stop qwen3:4b",
        "search" => "Examples:\n  tallow search qwen3\n  tallow search embed",
        "convert" => {
            "Examples:
  tallow convert ./model-folder model.gguf
  tallow convert ./model-folder model-q4.gguf --quant q4_k_m --imatrix imatrix.gguf"
        }
        "embed" => {
            "Examples:
  tallow embed nomic-embed-text \"The cat sat.\" \"A dog.\"
  tallow embed openai/clip-vit-large-patch14 --match --image cat.jpg \"a cat\" \"a dog\""
        }
        "rerank" => {
            "Examples:\n  tallow rerank BAAI/bge-reranker-v2-m3 \"who sat?\" \"The cat sat.\" \"A dog.\""
        }
        "classify" => {
            "Examples:\n  tallow classify distilbert/distilbert-base-uncased-finetuned-sst-2-english \"A fine film.\""
        }
        "transcribe" => {
            "Examples:
  tallow transcribe openai/whisper-small talk.mp3
  tallow transcribe openai/whisper-small talk.mp3 --format srt
  tallow transcribe openai/whisper-small one.m4a two.ogg
  ffmpeg -i film.avi -f wav - | tallow transcribe openai/whisper-small -"
        }
        "bench" => {
            "Examples:
  tallow bench ./model.gguf
  tallow bench -m a.gguf,b.gguf -p 512 -n 128 -t 4,8 -o json"
        }
        "perplexity" => "Examples:\n  tallow perplexity ./model.gguf wiki.test.raw -c 512",
        "imatrix" => {
            "Examples:
  tallow imatrix ./model-folder calibration.txt -o imatrix.gguf
  tallow convert ./model-folder model.gguf --quant q4_k_m --imatrix imatrix.gguf"
        }
        "parse" => {
            "Examples:\n  tallow parse --tool-format hermes < answer.txt\n  tallow parse --tool-format mistral --tools tools.json --stream 4 < answer.txt"
        }
        "schema" => {
            "Examples:\n  tallow schema schema.json\n  tallow schema schema.json answer.json --model qwen3:0.6b"
        }
        "tokenize" => {
            "Examples:\n  tallow tokenize demo \"Hello there\"\n  tallow tokenize demo -d \"1, 2, 3\""
        }
        _ => return None,
    })
}

/// Commands whose options are settings, with their built-in defaults.
const CONFIGURED: [(&str, Defaults); 3] =
    [("run", Defaults::CHAT), ("serve", Defaults::API), ("doctor", Defaults::CHAT)];

/// The complete clap command.
pub(crate) fn command() -> Command {
    let cli = Cli::command().after_help(format!(
        "{MODELS}\n\n{EXAMPLES}\n\n`tallow --help` shows variables and files, `tallow COMMAND --help` a command's options. {HOME}"
    ));
    let cli = cli.after_long_help(format!("{MODELS}\n\n{EXAMPLES}\n\n{}\n{FILES}\n\n{HOME}", variables()));
    cli.mut_subcommands(subcommand)
}

fn variables() -> String {
    let mut text = String::from("Variables:\n");
    for variable in VARIABLES.iter().filter(|v| v.name != "HOME") {
        let _ = writeln!(text, "  {:<16} {}", variable.name, variable.does);
    }
    let _ = writeln!(
        text,
        "  {:<16} a setting, as TALLOW_CONTEXT is --context; flags come before variables,\n  {:<16} and these before the configuration file",
        "TALLOW_…", ""
    );
    text
}

fn subcommand(mut command: Command) -> Command {
    let name = command.get_name().to_owned();
    if has_model(&command) {
        let named = Arg::new(NAMED).short('m').long(MODEL).value_name("MODEL").display_order(0);
        let named = named.aliases(["hf", "hf-repo", "hfr"]).help_heading(None::<&str>);
        command = command.arg(named.help("The model, as an option in place of the first argument"));
    }
    let defaults = CONFIGURED.iter().find(|(of, _)| *of == name).map(|(_, defaults)| *defaults);
    command = command.mut_args(|arg| argument(arg, defaults));
    let more =
        format!("Variables and files: `tallow --help`. Every setting: {HOME}/blob/main/docs/reference.md");
    let long = examples(&name).map_or_else(|| more.clone(), |examples| format!("{examples}\n\n{more}"));
    command.after_help(format!("`tallow {name} --help` says more.")).after_long_help(long)
}

/// True if the first positional of a built command is a model.
fn has_model(command: &Command) -> bool {
    command.get_positionals().next().is_some_and(|arg| arg.get_id() == MODEL)
}

/// Adds an option's default, variable and aliases to its help, and has numbers parsed with our error messages.
fn argument(arg: Arg, defaults: Option<Defaults>) -> Arg {
    let arg = numbers(arg);
    let Some(name) = arg.get_long().map(str::to_owned) else { return arg };
    let own = defaults.and_then(|defaults| defaults.of(&name));
    let mut short = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut long = arg.get_long_help().map_or_else(|| short.clone(), ToString::to_string);
    if let Some(value) = &own {
        let _ = write!(short, " [default: {value}]");
        let _ = write!(long, "\n\nThe default is the model's own, else {value}.");
    }
    let mut others: Vec<String> =
        arg.get_all_aliases().unwrap_or_default().iter().map(|a| format!("--{a}")).collect();
    if defaults.is_some() && KNOWN.iter().any(|known| known.name == name) {
        others.extend(KNOWN.iter().filter(|known| known.name == name).map(|known| known.variable()));
    }
    if !others.is_empty() {
        let _ = write!(long, "\n\nAlso: {}", others.join(", "));
    }
    // A text with nothing to add stays the same for `-h` and `--help`.
    if long == short { arg } else { arg.help(short).long_help(long) }
}

/// Parses numbers with our error messages.
fn numbers(arg: Arg) -> Arg {
    fn read<T: FromStr>(text: &str) -> Result<T, String>
    where
        T::Err: std::fmt::Display + 'static,
    {
        text.parse().map_err(|why| reason(&why))
    }
    // These have parsers of their own, which accept -1.
    if ["seed", "max_tokens"].iter().any(|id| arg.get_id() == id) {
        return arg;
    }
    let kind = arg.get_value_parser().type_id();
    if kind == TypeId::of::<usize>() {
        arg.value_parser(read::<usize>)
    } else if kind == TypeId::of::<u64>() {
        arg.value_parser(read::<u64>)
    } else if kind == TypeId::of::<u16>() {
        arg.value_parser(read::<u16>)
    } else if kind == TypeId::of::<f32>() {
        arg.value_parser(read::<f32>)
    } else {
        arg
    }
}
