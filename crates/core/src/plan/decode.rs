//! [`DecodePlan`]: a plan of decode steps that is refilled in place, so that what was launched with it can be launched
//! again.

use super::{Tables, add_tables};
use crate::{DType, Error, Memory, PageTable, Result, Span, StateRows, Step, StepPlan, Tensor};

/// Room of a [`DecodePlan`]: sequences with one token each, and KV cache pages of each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeRoom {
    /// Sequences. Rows without one are computed too, for nothing.
    pub rows: usize,
    /// KV cache pages of a sequence.
    pub pages: usize,
}

/// Scratch memory of the cache, for rows without a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// A KV cache page.
    pub page: u32,
    /// A page of the sliding-window layers, if they have their own.
    pub swa_page: Option<u32>,
    /// A row of recurrent states, if there are any. All such rows begin a sequence with the same token, so that they write
    /// the same there, and read nothing.
    pub state: Option<u32>,
}

/// A plan of steps in which all sequences decode: of the same shape for all of them, in memory of its own.
#[derive(Debug)]
pub struct DecodePlan<B: Memory> {
    plan: StepPlan<B>,
    /// All numbers of the plan.
    all: Tensor<B>,
    room: DecodeRoom,
    scratch: Scratch,
    page_len: usize,
}

impl<B: Memory> DecodePlan<B> {
    /// A plan without a step, for pages of `page_len` tokens.
    pub fn new(b: &B, room: DecodeRoom, scratch: Scratch, page_len: usize) -> Result<DecodePlan<B>> {
        let DecodeRoom { rows, pages } = room;
        let states = if scratch.state.is_some() { 2 * rows } else { 0 };
        let swa = usize::from(scratch.swa_page.is_some());
        let all = b.alloc(DType::U32, 1, (6 + swa) * rows + 1 + states + (1 + swa) * rows * pages)?;
        let host = Step { page_len, ..Step::default() };
        Ok(DecodePlan { plan: StepPlan::within(&all, host, 0, 0), all, room, scratch, page_len })
    }

    /// Changes the plan to that of another step. What was launched before must have read its numbers: devices run writes
    /// and ops in order.
    pub fn refill(&mut self, b: &B, step: Step) -> Result<&StepPlan<B>> {
        let step = self.padded(step)?;
        let (rows, pages) = (self.room.rows, self.room.pages);
        // If it fails half way, nothing is known of what the device holds.
        let before = std::mem::take(&mut self.plan.host);
        let numbers = step.numbers(0);
        b.write(&self.all.matrix(0, 1, numbers.len()), bytemuck::cast_slice(&numbers))?;
        let mut first = self.all.len() - step.tables().count() * rows * pages;
        for tables in step.tables() {
            self.write_tables(b, first, Tables { step: &before, ..tables }, tables)?;
            first += rows * pages;
        }
        self.plan = StepPlan::within(&self.all, step, pages, rows);
        Ok(&self.plan)
    }

    /// Writes the page tables that differ from those before; they begin at number `at` of the plan.
    fn write_tables(&self, b: &B, at: usize, before: Tables<'_>, tables: Tables<'_>) -> Result<()> {
        let (rows, pages) = (self.room.rows, self.room.pages);
        let is_new = |row: &usize| before.get(*row) != tables.get(*row);
        let mut row = 0;
        while let Some(first) = (row..rows).find(is_new) {
            let end = (first..rows).find(|row| !is_new(row)).unwrap_or(rows);
            let mut changed = Vec::with_capacity((end - first) * pages);
            add_tables(&mut changed, tables.of(first..end), pages);
            let to = self.all.matrix(at + first * pages, 1, changed.len());
            b.write(&to, bytemuck::cast_slice(&changed))?;
            row = end;
        }
        Ok(())
    }

    /// The plan of the step that it was refilled with last.
    pub fn plan(&self) -> &StepPlan<B> {
        &self.plan
    }

    /// The step with a sequence in each row: those that are missing begin on the scratch page.
    fn padded(&self, step: Step) -> Result<Step> {
        step.check()?;
        let (DecodeRoom { rows, pages }, mut step) = (self.room, step);
        let count = step.spans.len();
        let is_decode = |span: &Span| span.rows == 1;
        let of_all = |has: bool| if has { count } else { 0 };
        if count > rows
            || !step.spans.iter().all(is_decode)
            || step.most_pages() > pages
            || step.swa_pages.len() != of_all(self.scratch.swa_page.is_some())
            || step.states.len() != of_all(self.scratch.state.is_some())
            || step.outputs.len() > rows
            || step.page_len != self.page_len
        {
            let want = format!("at most {rows} sequences with a token and {pages} pages each");
            let got = format!("{count} sequences with {} tokens", step.tokens.len());
            return Err(Error::Shape { op: "step", what: "a plan's room", want, got });
        }
        let table = PageTable::from(vec![self.scratch.page]);
        step.tokens.resize(rows, 0);
        step.spans.resize(rows, Span { rows: 1, start: 0, pages: table });
        if let Some(page) = self.scratch.swa_page {
            step.swa_pages.resize(rows, PageTable::from(vec![page]));
        }
        if let Some(state) = self.scratch.state {
            step.states.resize(rows, StateRows { from: state, to: state });
        }
        Ok(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reading;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// Memory on the host, which counts the bytes that are written, and can run full.
    #[derive(Debug, Default)]
    struct Host {
        written: Cell<usize>,
        writes_left: Cell<Option<usize>>,
    }

    impl Memory for Host {
        type Buf = Rc<RefCell<Vec<u32>>>;
        type Pending = Vec<Tensor<Host>>;

        fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Host>> {
            // Uninitialised, as on a device.
            Ok(Tensor::whole(Rc::new(RefCell::new(vec![77; rows * cols])), dtype, rows, cols))
        }

        fn write(&self, to: &Tensor<Host>, bytes: &[u8]) -> Result<()> {
            if let Some(left) = self.writes_left.get() {
                let Some(left) = left.checked_sub(1) else {
                    return Err(Error::OutOfMemory { device: "host".into(), asked: bytes.len() });
                };
                self.writes_left.set(Some(left));
            }
            assert_eq!(bytes.len(), to.bytes());
            self.written.set(self.written.get() + bytes.len());
            let at = to.offset();
            to.buf().borrow_mut()[at..at + to.len()].copy_from_slice(bytemuck::cast_slice(bytes));
            Ok(())
        }

        fn fetch(&self, from: &[&Tensor<Host>]) -> Result<Self::Pending> {
            Ok(from.iter().copied().cloned().collect())
        }

        fn wait(&self, pending: Self::Pending, to: &mut [&mut [u8]]) -> Result<()> {
            for Reading { from, to } in Reading::pairs(&pending, to)? {
                let buf = from.buf().borrow();
                for (row, to) in to.chunks_exact_mut(4 * from.cols().max(1)).enumerate() {
                    let at = from.offset() + row * from.stride();
                    to.copy_from_slice(bytemuck::cast_slice(&buf[at..at + from.cols()]));
                }
            }
            Ok(())
        }
    }

    const ROOM: DecodeRoom = DecodeRoom { rows: 4, pages: 3 };
    const SCRATCH: Scratch = Scratch { page: 50, swa_page: Some(40), state: Some(20) };
    /// The pages of sliding-window layers, that much behind the others.
    const SWA: u32 = 12;

    /// A step in which sequences of so many tokens decode, in pages of 4 tokens.
    fn step(tables: &[(usize, &PageTable)]) -> Step {
        let span = |&(start, pages): &(usize, &PageTable)| Span { rows: 1, start, pages: pages.clone() };
        let swa = |(_, pages): &(usize, &PageTable)| pages.iter().map(|page| page + SWA).collect();
        let count = tables.len() as u32;
        Step {
            tokens: (0..count).map(|i| 30 + i).collect(),
            spans: tables.iter().map(span).collect(),
            swa_pages: tables.iter().map(swa).collect(),
            states: (0..count).map(|i| StateRows { from: 2 * i, to: 2 * i + 1 }).collect(),
            outputs: (0..count).collect(),
            page_len: 4,
        }
    }

    /// The refilled plan begins with the numbers of a plan made for the step alone.
    fn compare(b: &Host, got: &StepPlan<Host>, step: &Step) {
        let want = StepPlan::new(b, step.clone()).unwrap();
        compare_pages(b, got, &want, SCRATCH.page);
        if !step.spans.is_empty() {
            compare_pages(b, got.of_cache(true).unwrap(), want.of_cache(true).unwrap(), 40);
        }
    }

    fn compare_pages(b: &Host, got: &StepPlan<Host>, want: &StepPlan<Host>, scratch: u32) {
        let step = want.host();
        let read = |t: &Tensor<Host>| b.download::<u32>(t).unwrap();
        let rows = step.tokens.len();
        let pairs = [
            (&got.tokens, &want.tokens),
            (&got.positions, &want.positions),
            (&got.slots, &want.slots),
            (&got.lens, &want.lens),
            (&got.outputs, &want.outputs),
        ];
        for (got, want) in pairs {
            assert_eq!(read(got)[..want.len()], read(want));
        }
        assert_eq!(read(&got.starts), [0, 1, 2, 3, 4]);
        for (row, span) in step.spans.iter().enumerate() {
            assert_eq!(read(&got.pages)[row * ROOM.pages..][..span.pages.len()], span.pages[..]);
        }
        let (got_states, want_states) = (read(&got.states), read(&want.states));
        for half in 0..2 {
            assert_eq!(got_states[half * ROOM.rows..][..rows], want_states[half * rows..][..rows]);
        }
        // Rows without a sequence begin one on the scratch page.
        for row in rows..ROOM.rows {
            let (slot, len) = (read(&got.slots)[row], read(&got.lens)[row]);
            assert_eq!((read(&got.positions)[row], slot, len), (0, 4 * scratch, 1));
            assert_eq!(read(&got.pages)[row * ROOM.pages], scratch);
            assert_eq!((got_states[row], got_states[ROOM.rows + row]), (20, 20));
        }
        let scratch = (rows < ROOM.rows).then_some((scratch, 20));
        assert_eq!(got.max_page(), want.max_page().max(scratch.map(|s| s.0)));
        assert_eq!(got.max_state(), want.max_state().max(scratch.map(|s| s.1)));
    }

    #[test]
    fn a_refilled_plan_is_that_of_the_step_and_only_changed_page_tables_are_written() {
        let b = Host::default();
        let mut plan = DecodePlan::new(&b, ROOM, SCRATCH, 4).unwrap();
        let (a, mut c, d) =
            (PageTable::from(vec![7, 3]), PageTable::from(vec![9]), PageTable::from(vec![1, 2, 4]));
        let numbers = (4 * 4 + 5 + 4 + 2 * 4) * 4;
        let table = 4 * ROOM.pages;
        let mut refill = |tables: &[(usize, &PageTable)], changed: usize| {
            let step = step(tables);
            let before = b.written.get();
            compare(&b, plan.refill(&b, step.clone()).unwrap(), &step);
            let (new, fresh) =
                (b.written.get() - before, StepPlan::new(&Host::default(), step.clone()).unwrap());
            // `compare` has uploaded the step once more, by itself.
            let alone = [&fresh.tokens, &fresh.positions, &fresh.slots, &fresh.starts, &fresh.lens];
            let alone = alone.into_iter().chain([&fresh.states, &fresh.outputs, &fresh.pages]);
            let swa = fresh.of_cache(true).ok().filter(|_| !tables.is_empty());
            let alone = alone.chain(swa.iter().flat_map(|swa| [&swa.slots, &swa.pages]));
            let alone: usize = alone.map(Tensor::bytes).sum();
            assert_eq!(new - alone, numbers + 4 * step.outputs.len() + 2 * changed * table);
        };
        refill(&[(5, &a), (2, &c)], 4);
        refill(&[(6, &a), (3, &c)], 0);
        c.extend([8]);
        refill(&[(7, &a), (4, &c)], 1);
        // One joins; another leaves, so that the others move.
        refill(&[(7, &a), (5, &c), (9, &d)], 1);
        refill(&[(6, &c), (10, &d)], 3);
        refill(&[(1, &d), (2, &a), (3, &c), (4, &PageTable::from(vec![12, 11]))], 4);
        refill(&[], 4);
    }

    #[test]
    fn a_step_that_does_not_fit_is_refused_and_one_that_failed_is_written_anew() {
        let b = Host::default();
        let mut plan = DecodePlan::new(&b, ROOM, SCRATCH, 4).unwrap();
        let table = PageTable::from(vec![7, 3]);
        let good = step(&[(5, &table)]);
        let long = PageTable::from(vec![1; 4]);
        let many: Vec<_> = std::iter::repeat_n((1, &table), 5).collect();
        let two = Step {
            tokens: vec![1, 2],
            spans: vec![Span { rows: 2, start: 0, pages: table.clone() }],
            ..good.clone()
        };
        let refused = [
            step(&many),
            step(&[(5, &long)]),
            two,
            Step { states: Vec::new(), ..good.clone() },
            Step { swa_pages: Vec::new(), ..good.clone() },
            Step { swa_pages: vec![long.clone()], ..good.clone() },
            Step { swa_pages: vec![PageTable::default()], ..good.clone() },
            Step { page_len: 8, ..good.clone() },
            Step { outputs: vec![1], ..good.clone() },
        ];
        for step in refused {
            let made = plan.refill(&b, step.clone()).map(|_| ());
            assert!(matches!(made, Err(Error::Shape { op: "step", .. })), "{step:?} gave {made:?}");
        }
        plan.refill(&b, good.clone()).unwrap();
        for writes in 0..3 {
            b.writes_left.set(Some(writes));
            let other = PageTable::from(vec![6, 5]);
            assert!(plan.refill(&b, step(&[(5, &other)])).is_err());
            b.writes_left.set(None);
            compare(&b, plan.refill(&b, good.clone()).unwrap(), &good);
        }
    }
}
