//! [`StepPlan`]: batch metadata, constant for a step, computed and uploaded once before the first layer.

mod decode;

pub use decode::{DecodePlan, DecodeRoom, Scratch};

use std::ops::Range;

use crate::lora::in_order;
use crate::{Error, LoraRows, Memory, PageTable, Result, Tensor};

/// Consecutive tokens of one sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Tokens that the step computes.
    pub rows: usize,
    /// Tokens of the sequence already in the KV cache: the position of the first new one.
    pub start: usize,
    /// The KV cache pages of the sequence, in order, including those for the new tokens.
    pub pages: PageTable,
}

impl Span {
    /// Tokens of the sequence in the KV cache after the step.
    pub fn end(&self) -> usize {
        self.start + self.rows
    }
}

/// Rows of a sequence's recurrent state: the one a step reads and the one it writes.
///
/// They differ, so that a failed step leaves the state it read unchanged and can be repeated. Several sequences may read
/// the same row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRows {
    /// The state before the step. Not read at the start of a sequence, whose state is zero.
    pub from: u32,
    /// The state after the step.
    pub to: u32,
}

/// A step on the host: a ragged batch. Prefill, decode and any mix of them differ only in the lengths of spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The new tokens of all spans, concatenated.
    pub tokens: Vec<u32>,
    /// The spans, in the order of their tokens.
    pub spans: Vec<Span>,
    /// The pages of each span in the caches of sliding-window layers; empty if these have the same pages as the other
    /// layers. Those before the tile in which the window of the span's first token begins are not read, and may be any
    /// (see [`ATTEND_TILE`](crate::ops::ATTEND_TILE)).
    pub swa_pages: Vec<PageTable>,
    /// The recurrent state rows of each span; empty if no layer has recurrent state. A sequence may have several spans, one behind
    /// the other (see [`continues`](Step::continues)), so that its state in between stays in a row.
    pub states: Vec<StateRows>,
    /// Rows whose logits are computed.
    pub outputs: Vec<u32>,
    /// Tokens per KV cache page.
    pub page_len: usize,
}

impl Step {
    /// True if a span goes on where the one before it ends, and reads the state that that one writes.
    pub fn continues(&self, span: usize) -> bool {
        let rows = |span: usize| Some((self.spans.get(span)?, self.states.get(span)?));
        let both = span.checked_sub(1).and_then(rows).zip(rows(span));
        both.is_some_and(|((_, before), (span, state))| span.start > 0 && state.from == before.to)
    }

    /// Spans of each sequence: those that continue one another together, in order.
    pub fn sequences(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = next;
            next =
                (first + 1..self.spans.len()).find(|span| !self.continues(*span)).unwrap_or(self.spans.len());
            (first < next).then_some(first..next)
        })
    }

    /// Checks that the spans cover the tokens, pages hold the spans, a state row that one span writes is neither written
    /// nor read by another, but for one that continues it, and outputs are rows.
    fn check(&self) -> Result<()> {
        let wrong = |what, want: String, got: String| Error::Shape { op: "step", what, want, got };
        let rows: usize = self.spans.iter().map(|s| s.rows).sum();
        if rows != self.tokens.len() {
            return Err(wrong("the spans' tokens", self.tokens.len().to_string(), rows.to_string()));
        }
        let count = self.swa_pages.len();
        if count > 0 && count != self.spans.len() {
            return Err(wrong("the spans' SWA pages", self.spans.len().to_string(), count.to_string()));
        }
        let tables = self.spans.iter().map(|span| (span, &span.pages));
        for (span, pages) in tables.chain(self.spans.iter().zip(&self.swa_pages)) {
            let need = span.end().div_ceil(self.page_len.max(1));
            if pages.len() < need {
                return Err(wrong("a span's pages", format!("at least {need}"), pages.len().to_string()));
            }
        }
        let count = self.states.len();
        if count > 0 && count != self.spans.len() {
            return Err(wrong("the spans' states", self.spans.len().to_string(), count.to_string()));
        }
        let mut written: Vec<u32> = self.states.iter().map(|s| s.to).collect();
        written.sort_unstable();
        let twice = written.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let gap = (1..self.spans.len())
            .find(|i| self.continues(*i) && self.spans[*i].start != self.spans[i - 1].end());
        if let Some(i) = gap {
            let (want, got) = (self.spans[i - 1].end().to_string(), self.spans[i].start.to_string());
            return Err(wrong("the start of a span that continues another", want, got));
        }
        let reads = |i: &usize| self.spans[*i].start > 0 && !self.continues(*i);
        let mut read = (0..count).filter(reads).map(|i| self.states[i].from);
        let both = read.find(|from| written.binary_search(from).is_ok());
        if let Some(row) = twice.or(both) {
            let got = format!("{row} written by one span, and used by another");
            return Err(wrong("the rows of states", "those written for one span alone".into(), got));
        }
        match self.outputs.iter().find(|o| **o as usize >= rows) {
            Some(o) => Err(wrong("an output row", format!("under {rows}"), o.to_string())),
            None => Ok(()),
        }
    }

    /// Everything that is uploaded but the page tables, in the order of the fields of [`StepPlan`].
    fn numbers(&self, room_for_more: usize) -> Vec<u32> {
        let (rows, spans, len) = (self.tokens.len(), self.spans.len(), self.page_len);
        let count = 4 * rows + 2 * spans + 1 + 2 * self.states.len() + self.outputs.len();
        let mut numbers = Vec::with_capacity(count + room_for_more);
        numbers.extend(&self.tokens);
        numbers.extend(self.spans.iter().flat_map(|s| s.start as u32..s.end() as u32));
        let slot = |pages: &PageTable, at: usize| pages[at / len] * len as u32 + (at % len) as u32;
        for tables in self.tables() {
            let spans = self.spans.iter().zip(tables.all());
            numbers.extend(spans.flat_map(|(s, pages)| (s.start..s.end()).map(move |at| slot(pages, at))));
        }
        let mut row = 0;
        numbers.push(row);
        for span in &self.spans {
            row += span.rows as u32;
            numbers.push(row);
        }
        numbers.extend(self.spans.iter().map(|span| span.end() as u32));
        numbers.extend(self.states.iter().map(|s| s.from));
        numbers.extend(self.states.iter().map(|s| s.to));
        numbers.extend(&self.outputs);
        numbers
    }

    /// The page tables of the spans: those of all layers or, if sliding-window layers have their own, of all other layers
    /// and then of these.
    fn tables(&self) -> impl Iterator<Item = Tables<'_>> {
        let swa = (!self.swa_pages.is_empty()).then_some(Tables { step: self, swa: true });
        std::iter::once(Tables { step: self, swa: false }).chain(swa)
    }

    /// The step as sliding-window layers with their own pages see it; `None` if they have the same.
    fn of_swa(&self) -> Option<Step> {
        if self.swa_pages.is_empty() {
            return None;
        }
        let span = |(span, pages): (&Span, &PageTable)| Span { pages: pages.clone(), ..*span };
        Some(Step {
            tokens: self.tokens.clone(),
            spans: self.spans.iter().zip(&self.swa_pages).map(span).collect(),
            swa_pages: Vec::new(),
            states: self.states.clone(),
            outputs: self.outputs.clone(),
            page_len: self.page_len,
        })
    }

    /// No page of the spans is larger.
    fn max_page(&self) -> Option<u32> {
        self.spans.iter().filter_map(|span| span.pages.bound()).max()
    }

    /// Pages of the span with the most.
    fn most_pages(&self) -> usize {
        self.spans.iter().map(|span| &span.pages).chain(&self.swa_pages).map(|p| p.len()).max().unwrap_or(0)
    }
}

/// Page tables of a step's spans, in all layers alike or in the sliding-window layers.
#[derive(Clone, Copy)]
struct Tables<'a> {
    step: &'a Step,
    swa: bool,
}

impl<'a> Tables<'a> {
    fn get(self, span: usize) -> Option<&'a PageTable> {
        match self.swa {
            true => self.step.swa_pages.get(span),
            false => self.step.spans.get(span).map(|span| &span.pages),
        }
    }

    /// Those of some spans.
    fn of(self, spans: Range<usize>) -> impl Iterator<Item = &'a PageTable> {
        spans.map_while(move |span| self.get(span))
    }

    fn all(self) -> impl Iterator<Item = &'a PageTable> {
        self.of(0..self.step.spans.len())
    }
}

/// Adds page tables, padded with 0 to `most` pages. Those of many long sequences are nearly all that is uploaded, so each
/// is copied into its place at once.
fn add_tables<'a>(numbers: &mut Vec<u32>, tables: impl Iterator<Item = &'a PageTable>, most: usize) {
    for pages in tables {
        let next = numbers.len() + most;
        numbers.extend_from_slice(pages);
        numbers.resize(next, 0);
    }
}

/// A step on a device. Ops borrow it and compute no indices of their own. Its tensors are views of one buffer.
#[derive(Debug)]
pub struct StepPlan<B: Memory> {
    host: Step,
    /// No page and no state row of the step is larger, so that the checks of an op cost no look at each of them.
    max_page: Option<u32>,
    max_state: Option<u32>,
    /// [1, tokens]: token ids.
    pub tokens: Tensor<B>,
    /// [1, tokens]: position of each token in its sequence.
    pub positions: Tensor<B>,
    /// [1, tokens]: KV cache slot of each token.
    pub slots: Tensor<B>,
    /// [1, spans + 1]: first row of each span, then the number of rows (`cu_seqlens`).
    pub starts: Tensor<B>,
    /// [1, spans]: tokens of each sequence in the KV cache after the step.
    pub lens: Tensor<B>,
    /// [2, spans]: recurrent state row of each sequence before the step, and after it. [0, 0] without recurrent state.
    pub states: Tensor<B>,
    /// [1, outputs]: rows whose logits are computed.
    pub outputs: Tensor<B>,
    /// [spans, most pages of a span]: page tables. What follows a span's own pages is not read.
    pub pages: Tensor<B>,
    /// LoRA adapters by row range, in order.
    pub loras: Vec<LoraRows<B>>,
    /// Plan of the sliding-window layers, if these have pages of their own.
    swa: Option<Box<StepPlan<B>>>,
}

impl<B: Memory> StepPlan<B> {
    /// Uploads a step, in one transfer because each costs latency.
    pub fn new(b: &B, host: Step) -> Result<StepPlan<B>> {
        host.check()?;
        let (most, outputs) = (host.most_pages(), host.outputs.len());
        let mut numbers = host.numbers((host.spans.len() + host.swa_pages.len()) * most);
        host.tables().for_each(|tables| add_tables(&mut numbers, tables.all(), most));
        let all = b.upload_row(&numbers)?;
        Ok(StepPlan::within(&all, host, most, outputs))
    }

    /// The plan of a step whose numbers are in `all`, where each span has room for `most` pages, and there is room for so
    /// many outputs.
    fn within(all: &Tensor<B>, host: Step, most: usize, outputs: usize) -> StepPlan<B> {
        let (rows, spans, swa) = (host.tokens.len(), host.spans.len(), host.of_swa());
        let mut at = 0;
        let mut next = |rows: usize, cols: usize| {
            at += rows * cols;
            all.matrix(at - rows * cols, rows, cols)
        };
        let (tokens, positions, slots) = (next(1, rows), next(1, rows), next(1, rows));
        let swa_slots = next(usize::from(swa.is_some()), rows);
        let mut plan = StepPlan {
            tokens,
            positions,
            slots,
            starts: next(1, spans + 1),
            lens: next(1, spans),
            states: next(if host.states.is_empty() { 0 } else { 2 }, host.states.len()),
            outputs: next(1, outputs).col_range(0..host.outputs.len()),
            pages: next(spans, most),
            loras: Vec::new(),
            max_page: host.max_page(),
            max_state: host.states.iter().map(|s| s.from.max(s.to)).max(),
            host,
            swa: None,
        };
        plan.swa = swa.map(|host| Box::new(plan.with_pages(host, swa_slots, next(spans, most))));
        plan
    }

    /// The plan with other pages.
    fn with_pages(&self, host: Step, slots: Tensor<B>, pages: Tensor<B>) -> StepPlan<B> {
        StepPlan {
            tokens: self.tokens.clone(),
            positions: self.positions.clone(),
            slots,
            starts: self.starts.clone(),
            lens: self.lens.clone(),
            states: self.states.clone(),
            outputs: self.outputs.clone(),
            pages,
            loras: Vec::new(),
            max_page: host.max_page(),
            max_state: self.max_state,
            host,
            swa: None,
        }
    }

    /// The plan for a layer's KV cache: that of sliding-window layers with their own pages, if it is one of these.
    pub fn of_cache(&self, swa: bool) -> Result<&StepPlan<B>> {
        match (swa, self.swa.as_deref()) {
            (false, _) => Ok(self),
            (true, Some(plan)) => Ok(plan),
            (true, None) => Err(Error::Shape {
                op: "step",
                what: "the pages",
                want: "some for sliding-window layers too".into(),
                got: "none".into(),
            }),
        }
    }

    /// The step on the host, for backends that plan their launches there.
    pub fn host(&self) -> &Step {
        &self.host
    }

    /// No KV cache page of the step is larger.
    pub fn max_page(&self) -> Option<u32> {
        self.max_page
    }

    /// The largest recurrent state row of the step.
    pub(crate) fn max_state(&self) -> Option<u32> {
        self.max_state
    }

    /// The same step with the tensors of another backend, which has no LoRA adapters.
    pub(crate) fn map<C: Memory>(&self, each: impl Fn(&Tensor<B>) -> Tensor<C> + Copy) -> StepPlan<C> {
        StepPlan {
            host: self.host.clone(),
            max_page: self.max_page,
            max_state: self.max_state,
            tokens: each(&self.tokens),
            positions: each(&self.positions),
            slots: each(&self.slots),
            starts: each(&self.starts),
            lens: each(&self.lens),
            states: each(&self.states),
            outputs: each(&self.outputs),
            pages: each(&self.pages),
            loras: Vec::new(),
            swa: self.swa.as_ref().map(|swa| Box::new(swa.map(each))),
        }
    }

    /// The same step with LoRA adapters for some rows.
    pub fn adapted(self, loras: Vec<LoraRows<B>>) -> Result<StepPlan<B>> {
        let rows = self.host.tokens.len();
        if in_order(&loras, rows) {
            return Ok(StepPlan { loras, ..self });
        }
        let (want, got) = (format!("in order, under {rows}"), "others".into());
        Err(Error::Shape { op: "step", what: "the adapters' rows", want, got })
    }
}

/// KV cache of one layer: one page of keys, and one page of values if they are not the keys, per row.
///
/// The layout of tokens, heads and elements within a page is the backend's own; only its `kv_write` and `attend`
/// depend on it.
///
/// 8-bit elements are codes: each head of a token has an `f32` scale for its key and one for its value, stored in the
/// same page, and a value is code times scale. The scale is the largest magnitude over the largest code (see
/// [`DType::max_abs`](crate::DType::max_abs)), so nothing saturates; codes round to nearest, ties to even. A non-finite
/// element makes the scale non-finite.
#[derive(Debug)]
pub struct LayerKv<'a, B: Memory> {
    /// [pages, page length * key columns in the cache]
    pub k: &'a Tensor<B>,
    /// [pages, page length * value columns in the cache]; none if the values are the keys, as the latent rows of MLA
    /// are.
    pub v: Option<&'a Tensor<B>>,
}

impl<B: Memory> Clone for LayerKv<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Memory> Copy for LayerKv<'_, B> {}

/// Recurrent state of one layer: one state per row, two rows per sequence (see [`StateRows`]).
///
/// The layout of elements within a row is the backend's own.
#[derive(Debug)]
pub struct LayerState<'a, B: Memory> {
    /// [rows, (kernel - 1) * columns]: causal convolution state, the last `kernel - 1` inputs.
    pub window: &'a Tensor<B>,
    /// [rows, elements of all heads' state matrices]: gated delta rule state.
    pub states: &'a Tensor<B>,
}

impl<B: Memory> Clone for LayerState<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Memory> Copy for LayerState<'_, B> {}
