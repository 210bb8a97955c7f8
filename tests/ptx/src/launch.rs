//! How a kernel is launched: CTAs in random order, a few of them at a time, their warps in turns of random length.

use crate::fault::{Error, Fault, Trouble};
use crate::memory::{Bytes, Memory};
use crate::module::Kernel;
use crate::registers::LANES;
use crate::warp::{Cta, Pause, Warp};

/// The extent of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: [u32; 3],
    /// Bytes of shared memory of each, beside what the kernel declares.
    pub shared: usize,
    /// The parameters' bytes, as the kernel declares them.
    pub parameters: &'a [u8],
    /// Decides the order.
    pub seed: u64,
    /// Most instructions of a warp.
    pub limit: u64,
}

/// Numbers that look random, and are the same for the same seed.
struct Dice(u64);

impl Dice {
    /// One of `0..below`.
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) % below.max(1) as u64) as usize
    }
}

/// A CTA that is being executed.
struct Resident {
    index: [u32; 3],
    number: u32,
    epoch: u16,
    shared: Bytes,
    warps: Vec<Warp>,
    /// Warps that can run, and the number of warps that have exited.
    ready: Vec<usize>,
    done: usize,
    executed: u64,
}

/// Executes a launch. Returns how many instructions lanes executed.
pub(crate) fn launch(memory: &mut Memory, kernel: &Kernel, launch: &Launch<'_>) -> Result<u64, Error> {
    let threads = product(launch.block);
    let refuse = |what: String| Error::Launch { kernel: kernel.name().into(), what };
    let most = kernel.max_threads.unwrap_or(1024).min(1024) as u64;
    if threads == 0 || threads > most {
        return Err(refuse(format!("{threads} threads in a CTA: at least 1, at most {most}")));
    }
    let ctas = u32::try_from(product(launch.grid)).ok().filter(|n| *n > 0);
    let ctas = ctas.ok_or_else(|| refuse(format!("a grid of {:?}", launch.grid)))?;
    if launch.parameters.len() != kernel.parameter_bytes {
        let (want, got) = (kernel.parameter_bytes, launch.parameters.len());
        return Err(refuse(format!("{got} bytes of parameters: it has {want}")));
    }
    if launch.shared > 0 && !kernel.has_dynamic_shared {
        return Err(refuse("shared memory that it does not declare".into()));
    }

    let first = memory.begin(ctas);
    let mut dice = Dice(launch.seed);
    let mut waiting: Vec<u32> = (0..ctas).collect();
    let mut resident: Vec<Resident> = Vec::new();
    let at_once = 1 + dice.roll(4);
    let mut executed = 0;
    let mut spare: Vec<Bytes> = Vec::new();
    loop {
        while resident.len() < at_once && !waiting.is_empty() {
            let next = waiting.swap_remove(dice.roll(waiting.len()));
            let mut shared = spare.pop().unwrap_or_else(|| Bytes::new(kernel.shared + launch.shared));
            shared.forget();
            let [width, height, _] = launch.grid;
            let index = [next % width, next / width % height, next / width / height];
            let count = (threads as usize).div_ceil(LANES);
            let warp = |i: usize| {
                let lanes = (threads as usize - i * LANES).min(LANES);
                Warp::new(&kernel.lowered, i, (u64::from(u32::MAX) >> (LANES - lanes)) as u32)
            };
            resident.push(Resident {
                index,
                number: first + next,
                epoch: 0,
                shared,
                warps: (0..count).map(warp).collect(),
                ready: (0..count).collect(),
                done: 0,
                executed: 0,
            });
        }
        if resident.is_empty() {
            return Ok(executed);
        }
        let which = dice.roll(resident.len());
        let running = &mut resident[which];
        let turn = dice.roll(running.ready.len());
        let number = running.ready[turn];
        let length = 1 + dice.roll(2000) as u64;
        let mut cta = Cta {
            index: running.index,
            ctas: launch.grid,
            threads: launch.block,
            shared: &mut running.shared,
            parameters: launch.parameters,
            memory,
            number: running.number,
            epoch: running.epoch,
        };
        let fault = |(trouble, at, lane): (Trouble, u32, usize)| {
            kernel.fault(running.index, number * LANES + lane, at as usize, trouble)
        };
        let paused = running.warps[number].run(&kernel.lowered.code, &mut cta, length);
        match paused.map_err(|stopped| Error::Fault(Box::new(fault(stopped))))? {
            Pause::Turn => {
                running.executed += length;
                let limit = launch.limit * running.warps.len() as u64;
                if running.executed > limit {
                    let fault = kernel.fault(running.index, number * LANES, 0, Trouble::Endless(limit));
                    return Err(Error::Fault(Box::new(fault)));
                }
            }
            Pause::Barrier => {
                running.ready.swap_remove(turn);
            }
            Pause::Done => {
                running.ready.swap_remove(turn);
                running.done += 1;
            }
        }
        if running.ready.is_empty() {
            if running.done == running.warps.len() {
                let over = resident.swap_remove(which);
                executed += over.warps.iter().map(|warp| warp.executed).sum::<u64>();
                spare.push(over.shared);
                continue;
            }
            // All that have not ended are at the barrier.
            let is_over = |warp: &Warp| warp.has_ended();
            running.ready = (0..running.warps.len()).filter(|i| !is_over(&running.warps[*i])).collect();
            running.epoch = running.epoch.saturating_add(1);
        }
    }
}

fn product(extent: [u32; 3]) -> u64 {
    extent.iter().map(|n| u64::from(*n)).product()
}

impl Kernel {
    fn fault(&self, cta: [u32; 3], thread: usize, at: usize, trouble: Trouble) -> Fault {
        let line = self.lowered.code[at].line;
        let text = self.text.lines().nth(line as usize - 1).unwrap_or_default().trim().to_owned();
        Fault { kernel: self.name().into(), line, text, cta, thread, trouble }
    }
}
