//! `tallow replay`: answers of a server again, from their receipts.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tallow_constraint::{Compiler, Limits, Vocabulary};
use tallow_engine::handle::{Event, Info, Request, RunningEngine};
use tallow_models::Model;
use tallow_server::{Receipt, ReceiptAnswer, ReceiptModel, constraint};
use tokio::sync::mpsc::UnboundedReceiver;

use super::print;
use crate::args::Replay;
use crate::load::{self, OpenOptions};
use crate::lora::{self, Lora};
use crate::notice::Notice;
use crate::settings::{Defaults, Flags, Origin, Setting, Sources, resolve, unreadable};
use crate::{Failed, build, terminal};

/// Longest line of a file.
const MAX_LINE: u64 = 64 << 20;
/// Differences that are shown.
const MAX_SHOWN: usize = 10;

/// `tallow replay`
pub(crate) fn replay(args: Replay, sources: &Sources) -> Result<(), Failed> {
    let receipts = read_all(&args.files)?;
    let first = receipts.first().ok_or_else(|| Failed::new("there are no receipts in these files"))?;
    let was = first.model.clone();
    let name = args.model.clone().unwrap_or_else(|| was.name.clone());
    let mut sources = sources.clone();
    let mut chosen = name.clone();
    sources.choose(&mut chosen)?;
    let mut engine = args.engine.clone();
    if engine.quant.is_none() {
        engine.quant = was.quant.as_deref().and_then(|quant| quant.parse().ok());
    }
    let loaded = load::open(&chosen, OpenOptions::new(&sources, engine.offline, engine.quant)?)?;
    let digest = digest(&loaded.model)?;
    let all = receipts.len();
    let mine: Vec<Receipt> = receipts.into_iter().filter(|receipt| receipt.model.digest == digest).collect();
    if mine.is_empty() {
        return Err(Failed::new(format!(
            "{name} is another model than that of the receipts, or has changed since: its weights have the digest {digest}, \
             theirs {}; --model names the right one",
            was.digest
        )));
    }
    if mine.len() < all {
        let others = terminal::counted(all - mine.len(), "receipt");
        terminal::tell(&format!("note: {others} of other models are left out; --model names one of them"));
    }
    let was = mine[0].model.clone();
    note_differences(&was, &args);
    engine.kv.get_or_insert(was.kv.clone());
    engine.arithmetic = Some(match engine.arithmetic {
        Some(given) => given,
        None => {
            was.arithmetic.parse().map_err(|e| Failed::new(format!("arithmetic of the receipts: {e}")))?
        }
    });
    let flags = Flags { engine, ..Flags::default() };
    let mut config = loaded.after_text_codec(resolve(&sources, &flags, &loaded.generation, Defaults::API))?;
    let context = mine.iter().map(|receipt| receipt.model.context).max().unwrap_or(was.context);
    config.context.get_or_insert(Setting { value: context, origin: Origin::Flag });
    let adapters = Lora::open_all(&args.lora)?;
    config.adapter_room = lora::bytes(&adapters);
    let (isa, arithmetic) = (config.isa.value.to_string(), config.arithmetic.value.to_string());
    let handle = loaded.start(&config, vec![loaded.name.clone()], &Notice::show)?;
    lora::load(&handle, adapters)?;
    let differences = Repeater::new(handle)?.all(&mine, args.json)?;
    let same = mine.len() - differences;
    if !args.json {
        let answers = terminal::counted(mine.len(), "answer");
        print(&format!("{answers}: {same} the same, {differences} different ({isa}, {arithmetic})\n"))?;
    }
    match differences {
        0 => Ok(()),
        n => Err(Failed::new(format!("{} different", terminal::counted(n, "answer")))),
    }
}

/// SHA-256 of a model's weights, in hexadecimal.
pub(super) fn digest(model: &Model) -> Result<String, Failed> {
    Ok(model.checkpoint.digest()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Says what may make a difference.
fn note_differences(was: &ReceiptModel, args: &Replay) {
    if was.program != build::VERSION {
        terminal::tell(&format!(
            "note: the answers are of version {}, and this is {}",
            terminal::sanitized(&was.program),
            build::VERSION
        ));
    }
    let other_isa = args.engine.isa.as_ref().is_some_and(|isa| *isa != was.isa);
    if other_isa && was.arithmetic != "exact" {
        terminal::tell(
            "note: on another instruction set tokens may differ, but for answers with --arithmetic exact",
        );
    }
}

/// The receipts of files, and of all files in folders.
fn read_all(paths: &[PathBuf]) -> Result<Vec<Receipt>, Failed> {
    let mut receipts = Vec::new();
    for path in paths {
        let failed = |e: std::io::Error| Failed::new(format!("{}: {}", path.display(), unreadable(&e)));
        if !path.is_dir() {
            read(path, &mut receipts)?;
            continue;
        }
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        files.iter().try_for_each(|file| read(file, &mut receipts))?;
    }
    Ok(receipts)
}

fn read(path: &Path, receipts: &mut Vec<Receipt>) -> Result<(), Failed> {
    let name = path.display();
    let failed = |e: std::io::Error| Failed::new(format!("{name}: {}", unreadable(&e)));
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    for number in 1.. {
        let mut line = Vec::new();
        std::io::Read::take(&mut file, MAX_LINE).read_until(b'\n', &mut line).map_err(failed)?;
        match line.last() {
            None => break,
            // The last line of a server that was killed.
            Some(last) if *last != b'\n' => {
                terminal::tell(&format!("note: {name}, line {number}: it is not complete, and is left out"));
                break;
            }
            Some(_) => receipts.push(
                serde_json::from_slice(&line)
                    .map_err(|e| Failed::new(format!("{name}, line {number} is no receipt: {e}")))?,
            ),
        }
    }
    Ok(())
}

/// Repeats answers with a running model.
struct Repeater {
    engine: RunningEngine,
    compiler: Option<Compiler>,
    runtime: tokio::runtime::Runtime,
}

/// The first token in which two answers differ.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    at: usize,
    was: Option<u32>,
    is: Option<u32>,
}

impl Repeater {
    fn new(engine: RunningEngine) -> Result<Repeater, Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Repeater { engine, compiler: None, runtime })
    }

    /// Repeats all of them, as many at a time as there are slots. Returns how many are different.
    fn all(&mut self, receipts: &[Receipt], as_json: bool) -> Result<usize, Failed> {
        let bar = terminal::count_bar(receipts.len() as u64, "answers");
        let mut differences = 0;
        for some in receipts.chunks(self.engine.info().slots.max(1)) {
            let mut begun = Vec::new();
            for receipt in some {
                begun.push(self.begin(receipt)?);
            }
            for (receipt, events) in some.iter().zip(begun) {
                let answer = self.runtime.block_on(finish(events))?;
                let is_same = answer == receipt.answer;
                if as_json {
                    print(&format!("{}\n", self.as_json(receipt, &answer)))?;
                } else if !is_same && differences < MAX_SHOWN {
                    bar.suspend(|| print(&format!("{}\n", self.described(receipt, &answer))))?;
                }
                differences += usize::from(!is_same);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(differences)
    }

    /// Submits a request again.
    fn begin(&mut self, receipt: &Receipt) -> Result<UnboundedReceiver<Event>, Failed> {
        let failed = |why: String| Failed::new(format!("answer {}: {why}", terminal::sanitized(&receipt.id)));
        let was = &receipt.request;
        let adapter = match &was.adapter {
            None => None,
            Some((name, scale)) => {
                let listed =
                    self.engine.loras().iter().find(|listed| listed.name == *name).map(|all| all.lora);
                let lora = listed.ok_or_else(|| {
                    failed(format!("it was given with the adapter {name:?}: --lora {name}=PATH loads it"))
                })?;
                Some(tallow_engine::lora::LoraRef { scale: *scale, ..lora })
            }
        };
        let Info { tokenizer, vocab, .. } = self.engine.info();
        let matcher = match &was.grammar {
            None => None,
            Some(grammar) => {
                if self.compiler.is_none() {
                    let vocabulary = Vocabulary::new(tokenizer).map_err(|e| failed(e.to_string()))?;
                    self.compiler = Some(Compiler::new(Arc::new(vocabulary), Limits::default()));
                }
                let compiler = self.compiler.as_ref();
                let compiled = compiler.map(|compiler| compiler.compile(grammar)).transpose();
                compiled.map_err(|e| failed(e.to_string()))?.map(|compiled| compiled.matcher())
            }
        };
        let constraint = constraint(matcher, was.reasoning.clone(), (tokenizer, *vocab));
        let request = Request { adapter, constraint, ..was.request() };
        self.engine.submit(request).map_err(|why| failed(why.to_string()))
    }

    /// Description of a difference.
    fn described(&self, receipt: &Receipt, answer: &ReceiptAnswer) -> String {
        let id = format!("{}, choice {}", terminal::sanitized(&receipt.id), receipt.choice);
        let token = |token: Option<u32>| match token {
            None => "the end".to_owned(),
            Some(token) => format!("{token} {:?}", self.text(token)),
        };
        match difference(&receipt.answer.tokens, &answer.tokens) {
            Some(Difference { at, was, is }) => format!(
                "{id}: token {} of {} is {}, and was {}",
                at + 1,
                receipt.answer.tokens.len(),
                token(is),
                token(was)
            ),
            None => format!(
                "{id}: the tokens are the same, but not the text or the end: {:?} and {:?}",
                answer.finish, receipt.answer.finish
            ),
        }
    }

    fn text(&self, token: u32) -> String {
        self.engine.info().tokenizer.decode(&[token], tallow_text::tokenizer::Shown::All)
    }

    fn as_json(&self, receipt: &Receipt, answer: &ReceiptAnswer) -> String {
        let found = difference(&receipt.answer.tokens, &answer.tokens);
        let at = found.as_ref().map(|found| found.at);
        json!({
            "id": receipt.id,
            "choice": receipt.choice,
            "same": *answer == receipt.answer,
            "first_different_token": at,
            "was": found.as_ref().and_then(|found| found.was),
            "is": found.as_ref().and_then(|found| found.is),
            "tokens": answer.tokens.len(),
        })
        .to_string()
    }
}

/// Waits for the end of an answer.
async fn finish(mut events: UnboundedReceiver<Event>) -> Result<ReceiptAnswer, Failed> {
    let mut answer = ReceiptAnswer::default();
    while let Some(event) = events.recv().await {
        match event {
            Event::Piece { text, choice } => answer.push(choice.token, &text),
            Event::Done(done) => {
                answer.end(&done);
                return Ok(answer);
            }
            Event::Failed(why) => return Err(why.into()),
            Event::Started { .. } | Event::Prefill { .. } | Event::Prompt(_) => {}
        }
    }
    Err(Failed::new("the engine has stopped"))
}

/// The first token that is not the same.
fn difference(was: &[u32], is: &[u32]) -> Option<Difference> {
    let at = was.iter().zip(is).take_while(|(was, is)| was == is).count();
    let (was, is) = (was.get(at).copied(), is.get(at).copied());
    (was != is).then_some(Difference { at, was, is })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        let found =
            |was: &[u32], is: &[u32]| difference(was, is).map(|found| (found.at, found.was, found.is));
        assert_eq!(found(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(found(&[1, 2, 3], &[1, 5, 3]), Some((1, Some(2), Some(5))));
        assert_eq!(found(&[1, 2], &[1, 2, 3]), Some((2, None, Some(3))));
        assert_eq!(found(&[1, 2], &[]), Some((0, Some(1), None)));
    }
}
