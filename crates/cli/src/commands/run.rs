//! `tallow run`: one prompt, or a chat.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use tallow_constraint::{Compiled, Compiler, Grammar, Limits, Vocabulary};
use tallow_models::AnyModel;

use super::{print, prompt, repl, text_file};
use crate::Failed;
use crate::args::Run;
use crate::chat::dialogue::{Dialogue, Message};
use crate::chat::view::{Looks, View};
use crate::chat::{Answered, Cut, Talk, roomy, speed, too_long};
use crate::load::{self, LoadedModel};
use crate::lora::{self, Lora};
use crate::memory;
use crate::model_name::DEMO;
use crate::notice::Notice;
use crate::settings::{Defaults, EngineConfig, Flags, Origin, Setting, Sources, resolve};
use crate::terminal;

/// A prompt of fewer bytes, and so of fewer tokens, leaves room in any default context.
const SHORT_PROMPT: usize = 4096;

pub(crate) fn run(args: Run, sources: &Sources) -> Result<(), Failed> {
    // A prompt that cannot be read should not cost the loading of a model.
    let prompt = prompt::prompt(&args)?;
    if args.stop.iter().any(String::is_empty) {
        return Err(Failed::new("--stop: the text is empty, and would end every answer before it begins"));
    }
    let grammar = grammar(&args)?;
    let name = args.model.as_deref().unwrap_or(DEMO);
    let how = load::OpenOptions::new(sources, args.engine.offline, args.engine.quant)?;
    let loaded = match (load::any(name, how)?, &prompt) {
        (AnyModel::Decoder(model), _) => {
            let loaded = load::decoder(name, *model)?.with_template(args.chat.chat_template.as_deref())?;
            loaded.with_draft(sources, args.engine.draft.clone(), how)?
        }
        _ if args.chat.chat_template.is_some() => {
            return Err(Failed::new("--chat-template: the model has an encoder, and does not chat"));
        }
        _ if args.lora.is_some() => {
            return Err(Failed::new("--lora: the model has an encoder, and takes no adapters"));
        }
        (AnyModel::Seq2Seq(_), _) if grammar.is_some() => {
            let what = "--json-schema, --grammar and --regex are for models without an encoder, and this one has one";
            return Err(Failed::new(what));
        }
        (AnyModel::Seq2Seq(_), None) => {
            return Err(Failed::new(
                "the model answers one prompt at a time: give it one, as `tallow run MODEL PROMPT`",
            ));
        }
        (AnyModel::Seq2Seq(model), Some(prompt)) => {
            return super::answer::answer(&model, &args, &prompt.text, sources);
        }
        // Returns the error that says why an encoder cannot be run.
        (AnyModel::Encoder(_), _) => load::open(name, how)?,
    };
    let flags = Flags { engine: args.engine.clone(), sampling: args.sampling.clone(), ..Flags::default() };
    let mut config = loaded.after_text_codec(resolve(sources, &flags, &loaded.generation, Defaults::CHAT))?;
    let adapters = Lora::open_all(args.lora.as_slice())?;
    config.adapter_room = lora::bytes(&adapters);
    if let Some(prompt) = prompt.as_ref().filter(|p| p.text.len() > SHORT_PROMPT && config.context.is_none())
    {
        make_room(&mut config, &loaded, &args, &prompt.text)?;
    }
    let handle = loaded.start(&config, vec![loaded.name.clone()], &Notice::show)?;
    lora::load(&handle, adapters)?;
    let mut talk = Talk::new(handle, dialogue(&loaded, &args)?, loaded.model.spec.context)?;
    talk.max_tokens = config.max_tokens.as_ref().map(|s| s.value);
    talk.stops = args.stop.clone();
    talk.structure = grammar.map(|grammar| compiled(&grammar, &loaded)).transpose()?;
    talk.rolls = !args.chat.no_roll;
    match prompt {
        Some(prompt) => once(talk, &prompt, &args),
        None => {
            talk.in_chat = true;
            repl::chat(repl::Setup { loaded: &loaded, config, args: &args }, talk)
        }
    }
}

/// The grammar that the flags ask for.
fn grammar(args: &Run) -> Result<Option<Grammar>, Failed> {
    // A file, or the text itself.
    let read = |given: &str| match Path::new(given).is_file() {
        true => text_file(Path::new(given)),
        false => Ok(given.to_owned()),
    };
    Ok(match (&args.json_schema, &args.grammar, &args.regex) {
        (Some(given), ..) => {
            let schema = serde_json::from_str(&read(given)?).map_err(|e| {
                Failed::new(format!("--json-schema {given}: it is neither a file nor a schema: {e}"))
            })?;
            Some(Grammar::JsonSchema { schema, best_effort: false })
        }
        (_, Some(given), _) => {
            let text = read(given)?;
            Some(if text.contains("::=") { Grammar::Gbnf(text) } else { Grammar::Lark(text) })
        }
        (.., Some(regex)) => Some(Grammar::Regex(regex.clone())),
        (None, None, None) => None,
    })
}

fn compiled(grammar: &Grammar, loaded: &LoadedModel) -> Result<Arc<Compiled>, Failed> {
    let flag = match grammar {
        Grammar::JsonSchema { .. } => "--json-schema",
        Grammar::Regex(_) => "--regex",
        _ => "--grammar",
    };
    let vocabulary = Vocabulary::new(&loaded.text_codec()?.tokenizer);
    let compiled =
        vocabulary.and_then(|all| Compiler::new(Arc::new(all), Limits::default()).compile(grammar));
    compiled.map_err(|why| Failed::new(format!("{flag}: {why}")))
}

/// An empty conversation, with the options of the command line.
fn dialogue(loaded: &LoadedModel, args: &Run) -> Result<Dialogue, Failed> {
    let codec = loaded.text_codec()?;
    let templates = codec.templates.as_ref().filter(|_| !args.raw);
    let mut dialogue = Dialogue::new(codec.tokenizer.clone(), templates);
    dialogue.system = args.system.clone();
    if let Some(effort) = args.chat.effort() {
        dialogue.think(Some(effort)).map_err(|why| Failed::new(format!("--think: {why}")))?;
    }
    if args.chat.thinking_budget.is_some() && !dialogue.thinks() {
        return Err(Failed::new("--thinking-budget: this model's chat template has no marks of thinking"));
    }
    dialogue.thinking_budget = args.chat.thinking_budget;
    Ok(dialogue)
}

/// Chooses a context for a long prompt, so that nobody has to count its tokens.
fn make_room(
    config: &mut EngineConfig,
    loaded: &LoadedModel,
    args: &Run,
    prompt: &str,
) -> Result<(), Failed> {
    let mut dialogue = dialogue(loaded, args)?;
    dialogue.messages.push(Message { role: "user".into(), content: prompt.into(), ..Message::default() });
    let (tokens, made_for) = (dialogue.tokens()?.len(), loaded.model.spec.context);
    if tokens >= made_for {
        return Err(too_long(tokens, made_for, made_for));
    }
    let context = roomy(tokens, made_for);
    if context > memory::usual_context(&loaded.model) {
        config.context = Some(Setting { value: context, origin: Origin::Prompt });
    }
    Ok(())
}

/// Answers one prompt.
fn once(mut talk: Talk, prompt: &prompt::Prompt, args: &Run) -> Result<(), Failed> {
    let terminal = std::io::stdout().is_terminal();
    let templated = talk.dialogue.has_template();
    // Without a template the model continues the prompt, so on a terminal both are shown as one.
    let echo = args.chat.echo || (!args.chat.no_echo && !templated && terminal && prompt.typed);
    let mut view = View::new(Looks::new(&args.chat, templated), echo.then(|| prompt.text.clone()));
    let answered = match talk.say(&prompt.text, &mut |news| view.tell(news)) {
        // Nothing is printed before the error.
        Err(why) if !view.has_begun() => {
            view.abandon();
            return Err(why);
        }
        answered => {
            view.end()?;
            answered?
        }
    };
    match answered {
        Answered::Whole(done, cut) => {
            // A limit that the user set is no news; it is mentioned on a terminal only.
            let known = matches!(cut, Some(Cut::Tokens { chosen: true, .. }));
            if let Some(cut) = cut.filter(|_| !known || std::io::stderr().is_terminal()) {
                terminal::tell(&terminal::dim(&cut.words(false)));
            }
            if args.verbose {
                terminal::tell(&terminal::dim(&speed(&done)));
            }
        }
        Answered::Stopped => {
            drop(talk);
            // Exit status of a program that SIGINT has ended (128 + 2).
            std::process::exit(130)
        }
    }
    print("")
}
