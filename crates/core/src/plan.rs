//! [`StepPlan`]: everything that is constant for a step, computed and uploaded once, before the first layer.

use crate::backend::Memory;
use crate::{Backend, Error, Result, Tensor};

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

/// A step as the host sees it: a ragged batch. Prefill, decode and any mix of them differ only in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The new tokens of all spans, one span after another.
    pub tokens: Vec<u32>,
    /// The spans, in the order of their tokens.
    pub spans: Vec<Span>,
    /// Rows whose logits are wanted.
    pub outputs: Vec<u32>,
    /// Tokens in a cache page.
    pub page_len: usize,
}

impl Step {
    /// Spans fill the tokens, pages hold the spans, outputs are rows.
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
    /// [1, outputs]: rows whose logits are wanted.
    pub outputs: Tensor<B>,
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
        let parts =
            [&host.tokens[..], &host.positions(), &host.slots(), &starts, &lens, &pages, &host.outputs];
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
            outputs: next(1, host.outputs.len()),
            host,
        })
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
