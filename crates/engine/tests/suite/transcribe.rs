//! The transcriber on an engine: drafts of a window share its encoder output, and a future that is dropped cancels.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use crate::common::{Wrong, comes_to_rest, info, model};
use tallow_core::DType;
use tallow_cpu::{Cpu, Isa};
use tallow_engine::engine::spawn;
use tallow_engine::handle::{Info, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{ClientId, DecodeBudget, Limits};
use tallow_engine::transcribe::{Segment, TranscribeOptions, Transcriber};
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};
use tallow_models::speech::{Speech, SpeechTask};
use tallow_support::listener;

/// Transcriber with a Whisper of random weights. Also returns the tokens of a window's encoder output.
fn transcriber() -> (RunningEngine, Transcriber, usize) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tallow-transcribe-{}-{number}", std::process::id()));
    listener(&folder);
    let seq2seq = Seq2SeqModel::open(&folder).unwrap_or_else(|e| panic!("{e}"));
    let tokenizer = seq2seq.tokenizer().unwrap();
    let speech = Speech::read(&seq2seq, &tokenizer).unwrap();
    let (encoder_tokens, context) = (seq2seq.spec.encoder.context, seq2seq.spec.decoder.context + 1);
    let (bands, vocab) = (seq2seq.spec.encoder.audio.unwrap().bands, seq2seq.spec.decoder.vocab);
    let (pages, page_len, slots) = (40, 16, 2);
    let info =
        Info { tokenizer: tokenizer.clone(), vocab, context, slots, page_len, ..info(&model(), pages) };
    let runner = move || {
        let b = Cpu::new(Isa::best(), 2).map_err(Wrong::Device)?;
        let seq2seq =
            Seq2Seq::load(&b, &seq2seq, &mut |_, _| ControlFlow::Continue(())).map_err(Wrong::Load)?;
        let shape = KvShape { dtype: DType::F16, page_len, pages, swa_pages: 0, state_rows: 0 };
        let runner = Runner::seq2seq(b, seq2seq, shape).map_err(Wrong::Device)?;
        let limits = Limits {
            context,
            slots,
            budget: 64,
            decode_budget: DecodeBudget::of_tokens(64),
            all_logits: 8,
            drafts: None,
        };
        Ok::<_, Wrong>((runner, limits))
    };
    let engine = spawn(|| Ok(info), runner).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let transcriber = Transcriber::new(engine.clone(), speech, tokenizer, bands, encoder_tokens);
    (engine, transcriber, encoder_tokens)
}

/// Options at a temperature where some texts are so unlikely that their window is decoded again.
fn options(client: u64) -> TranscribeOptions {
    let (task, temperature, client) = (SpeechTask::Transcribe, 0.8, ClientId(client));
    TranscribeOptions { language: None, task, prompt: String::new(), temperature, client, salt: None }
}

/// Source of `seconds` of a tone.
fn tone(seconds: f32) -> impl FnMut(usize) -> Result<Vec<f32>, String> {
    let mut samples = (0..(seconds * 16000.0) as usize).map(|n| (n as f32 * 0.17).sin() * 0.3);
    move |n| Ok(samples.by_ref().take(n).collect())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn all_drafts_of_a_window_share_what_it_was_encoded_to() {
    let (_engine, transcriber, encoder_tokens) = transcriber();
    let (mut windows, mut segments): (usize, Vec<Segment>) = (0, Vec::new());
    let mut tell = |some: &[Segment], _: f64| {
        windows += 1;
        segments.extend_from_slice(some);
    };
    block_on(transcriber.run(&options(0), &mut tone(2.0), &mut tell)).unwrap();
    let (handle, load) = (&transcriber.handle, |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed));
    let stats = handle.stats();
    // A prompt is one token, the start of the transcript.
    let drafts = load(&stats.prompt_tokens) as usize;
    assert!(windows > 1 && drafts > windows, "{windows} windows, {drafts} drafts");
    assert!(segments.iter().any(|segment| segment.temperature > 0.9), "{segments:?}");
    // The decoder computes the prompt and all generated tokens but the last; the rest was encoded.
    let encoded = stats.step_sizes.tokens() - load(&stats.new_tokens);
    assert_eq!((encoded as usize, load(&stats.preemptions)), (windows * encoder_tokens, 0));
    comes_to_rest(handle);
}

#[test]
fn two_at_once_hear_what_each_hears_alone() {
    let (_engine, transcriber, _) = transcriber();
    let texts = |clients: &[u64]| -> Vec<Vec<Segment>> {
        let run = |client: u64| {
            let mut segments = Vec::new();
            let mut tell = |some: &[Segment], _: f64| segments.extend_from_slice(some);
            block_on(transcriber.run(&options(client), &mut tone(1.0 + client as f32), &mut tell)).unwrap();
            segments
        };
        std::thread::scope(|s| {
            let running: Vec<_> = clients.iter().map(|client| s.spawn(|| run(*client))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let alone = [texts(&[0]), texts(&[1])].concat();
    assert_eq!(texts(&[0, 1]), alone);
}

#[test]
fn a_dropped_future_cancels() {
    let (_engine, transcriber, _) = transcriber();
    let (options, mut more, mut tell) = (options(0), tone(2.0), |_: &[Segment], _: f64| {});
    let mut running = Box::pin(transcriber.run(&options, &mut more, &mut tell));
    block_on(poll_fn(|cx| {
        assert!(running.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    }));
    assert_eq!(transcriber.handle.taken(), 1);
    drop(running);
    comes_to_rest(&transcriber.handle);
}
