//! [`StepPlan`]: everything that is constant for a step, computed and uploaded once, before the first layer.

use crate::backend::Memory;
use crate::lora::in_order;
use crate::{Backend, Error, LoraRows, Result, Tensor};

/// Some consecutive tokens of one sequence that a step computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// How many tokens the step computes.
    pub rows: usize,
    /// How many tokens of the sequence the cache holds already: the position of the first new one.
    pub start: usize,
    /// The cache pages that hold the sequence, the new tokens included, in order.
    pub pages: Vec<u32>,
}

impl Span {
    /// Tokens of the sequence that the cache holds after the step.
    pub fn end(&self) -> usize {
        self.start + self.rows
    }
}

/// Where a sequence's state is, among the rows of what layers keep of sequences, and where it goes.
///
/// They are two rows: a step that fails leaves what it read as it was, and can be done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRows {
    /// The state before the step. Nobody looks at it where a sequence begins: it begins with zeros.
    pub from: u32,
    /// The state after it.
    pub to: u32,
}

/// A step as the host sees it: a ragged batch. Prefill, decode and any mix of them differ only in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The new tokens of all spans, one span after another.
    pub tokens: Vec<u32>,
    /// The spans, in the order of their tokens.
    pub spans: Vec<Span>,
    /// The state of each span; empty where no layer keeps any.
    pub states: Vec<StateRows>,
    /// Rows whose logits are wanted.
    pub outputs: Vec<u32>,
    /// Tokens in a cache page.
    pub page_len: usize,
}

impl Step {
    /// Spans fill the tokens, pages hold the spans, states are apart, outputs are rows.
    fn check(&self) -> Result<()> {
        let wrong = |what, want: String, got: String| Error::Shape { op: "step", what, want, got };
        let rows: usize = self.spans.iter().map(|s| s.rows).sum();
        if rows != self.tokens.len() {
            return Err(wrong("the spans' tokens", self.tokens.len().to_string(), rows.to_string()));
        }
        for span in &self.spans {
            let need = span.end().div_ceil(self.page_len.max(1));
            if span.pages.len() < need {
                return Err(wrong(
                    "a span's pages",
                    format!("at least {need}"),
                    span.pages.len().to_string(),
                ));
            }
        }
        let count = self.states.len();
        if count > 0 && count != self.spans.len() {
            return Err(wrong("the spans' states", self.spans.len().to_string(), count.to_string()));
        }
        let mut rows_of_states: Vec<u32> = self.states.iter().flat_map(|s| [s.from, s.to]).collect();
        rows_of_states.sort_unstable();
        if let Some(pair) = rows_of_states.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(
                "the rows of states",
                "each of them once".into(),
                format!("{} twice", pair[0]),
            ));
        }
        match self.outputs.iter().find(|o| **o as usize >= rows) {
            Some(o) => Err(wrong("an output row", format!("under {rows}"), o.to_string())),
            None => Ok(()),
        }
    }

    /// The position of each token in its sequence.
    fn positions(&self) -> Vec<u32> {
        self.spans.iter().flat_map(|s| s.start as u32..s.end() as u32).collect()
    }

    /// The place of each token in the cache: page times page length, plus the place in the page.
    fn slots(&self) -> Vec<u32> {
        let len = self.page_len;
        let slot = |s: &Span, at: usize| s.pages[at / len] * len as u32 + (at % len) as u32;
        self.spans.iter().flat_map(|s| (s.start..s.end()).map(move |at| slot(s, at))).collect()
    }
}

/// A step on a device. Ops borrow it; none of them computes an index of its own. Its tensors are views of one buffer.
#[derive(Debug)]
pub struct StepPlan<B: Backend> {
    /// The same, for backends that plan their launches on the host.
    pub host: Step,
    /// [1, tokens]: token ids.
    pub tokens: Tensor<B>,
    /// [1, tokens]: the position of each in its sequence.
    pub positions: Tensor<B>,
    /// [1, tokens]: the cache slot of each.
    pub slots: Tensor<B>,
    /// [1, spans + 1]: the first row of each span, and the number of rows.
    pub starts: Tensor<B>,
    /// [1, spans]: tokens of each sequence in the cache after the step.
    pub lens: Tensor<B>,
    /// [spans, most pages of a span]: page tables, the short ones filled up with 0.
    pub pages: Tensor<B>,
    /// [2, spans]: the row of each sequence's state before the step, and that after it. No rows where there are none.
    pub states: Tensor<B>,
    /// [1, outputs]: rows whose logits are wanted.
    pub outputs: Tensor<B>,
    /// Which rows have which adapter, in order.
    pub adapted: Vec<LoraRows<B>>,
}

impl<B: Backend> StepPlan<B> {
    /// Uploads a step: all of it at once, for a device is slow to be told something.
    pub fn new(b: &B, host: Step) -> Result<StepPlan<B>> {
        host.check()?;
        let (rows, spans) = (host.tokens.len(), host.spans.len());
        let most = host.spans.iter().map(|s| s.pages.len()).max().unwrap_or(0);
        let mut starts = vec![0];
        starts.extend(host.spans.iter().scan(0, |row, span| {
            *row += span.rows as u32;
            Some(*row)
        }));
        let lens: Vec<u32> = host.spans.iter().map(|span| span.end() as u32).collect();
        let mut pages = vec![0; spans * most];
        for (row, span) in pages.chunks_exact_mut(most.max(1)).zip(&host.spans) {
            row[..span.pages.len()].copy_from_slice(&span.pages);
        }
        let states: Vec<u32> =
            host.states.iter().map(|s| s.from).chain(host.states.iter().map(|s| s.to)).collect();
        let (positions, slots) = (host.positions(), host.slots());
        let parts = [&host.tokens[..], &positions, &slots, &starts, &lens, &pages, &states, &host.outputs];
        let all = b.upload_row(&parts.concat())?;
        let mut at = 0;
        let mut next = |rows: usize, cols: usize| {
            at += rows * cols;
            all.matrix(at - rows * cols, rows, cols)
        };
        Ok(StepPlan {
            tokens: next(1, rows),
            positions: next(1, rows),
            slots: next(1, rows),
            starts: next(1, spans + 1),
            lens: next(1, spans),
            pages: next(spans, most),
            states: next(if host.states.is_empty() { 0 } else { 2 }, host.states.len()),
            outputs: next(1, host.outputs.len()),
            adapted: Vec::new(),
            host,
        })
    }

    /// The same step, some of whose rows have adapters.
    pub fn adapted(self, adapted: Vec<LoraRows<B>>) -> Result<StepPlan<B>> {
        let rows = self.host.tokens.len();
        if in_order(&adapted, rows) {
            return Ok(StepPlan { adapted, ..self });
        }
        let (want, got) = (format!("in order, under {rows}"), "others".into());
        Err(Error::Shape { op: "step", what: "the adapters' rows", want, got })
    }
}

/// One layer's part of the cache: a page of keys and a page of values in each row.
///
/// How tokens, heads and elements lie within a page is the backend's own affair; only its `kv_write` and `attend`
/// look inside.
///
/// Elements of eight bits are codes, and each head of a token has a scale for its key and one for its value, an `f32` in
/// the same page. A number is its code times that. The scale is the largest magnitude over the largest code (see
/// [`DType::reach`](crate::DType::reach)), so nothing is out of reach; codes are the nearest, of two as near the even one.
/// Where something is not finite, so is the scale.
#[derive(Debug)]
pub struct LayerKv<'a, B: Backend> {
    /// [pages, page length * kept key columns]
    pub k: &'a Tensor<B>,
    /// [pages, page length * kept value columns]
    pub v: &'a Tensor<B>,
}

impl<B: Backend> Clone for LayerKv<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for LayerKv<'_, B> {}

/// What one layer keeps of sequences besides pages: a state in each row, of which a sequence has two (see [`StateRows`]).
///
/// How elements lie within a row is the backend's own affair.
#[derive(Debug)]
pub struct LayerState<'a, B: Backend> {
    /// [rows, (kernel - 1) * columns]: what a convolution needs of the rows before.
    pub window: &'a Tensor<B>,
    /// [rows, elements of all heads' matrices]
    pub matrices: &'a Tensor<B>,
}

impl<B: Backend> Clone for LayerState<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for LayerState<'_, B> {}
