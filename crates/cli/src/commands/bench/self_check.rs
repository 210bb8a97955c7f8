//! `tallow bench --self-check`: what the machine can do, and which part of that products of weights reach here. Needs no
//! model; what it prints can be pasted into an issue.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Instant;

use tallow_core::ops::{Epilogue, Linear};
use tallow_core::{Backend, Format, HostWeight, LinearWeights, Weight};

use super::super::{doctor, print};
use crate::args::Bench;
use crate::devices::{
    Arithmetic, CpuOptions, Device, Hardware, MeasuredBackend, PROBE_BYTES, Speeds, Task, candidates,
};
use crate::settings::{DeviceArgs, Sources};
use crate::single_runner::Setup;
use crate::{Failed, terminal};

/// Weight formats to measure: those of most GGUF files, and BF16.
const FORMATS: [Format; 5] = [Format::Q4K, Format::Q6K, Format::Q8_0, Format::MXFP4, Format::BF16];
/// A layer of a small model. As many of them are multiplied in turn as are measured by the memory's speed.
const OUTPUTS: usize = 3072;
const INPUTS: usize = 1024;
/// Rows of input: an answer, eight answers at once, a prompt.
const ROWS: [usize; 3] = [1, 8, 512];
/// Layers that are multiplied with more than one row: far fewer take long enough.
const FEW: usize = 8;
/// Outputs and inputs of an op so small that what is around its loop shows.
const SMALL: usize = 256;

/// Variation of the memory's speed from which on nothing here is reliable.
const UNSTEADY: f64 = 0.25;
/// Part of the read speed that products with one row should reach.
const SLOW_READ: f64 = 0.5;
/// Part of a thread's own speed that more threads should reach each.
const SLOW_THREAD: f64 = 0.7;

pub(super) fn self_check(args: &Bench, sources: &Sources) -> Result<(), Failed> {
    let of_device = DeviceArgs {
        device: args.device,
        threads: args.threads.first().copied(),
        numa: args.numa,
        isa: args.isa.clone(),
        arithmetic: args.arithmetic,
        quant: None,
        mmap: false,
        offline: true,
    };
    let setup = Setup::new(sources, &of_device, None, Arithmetic::Fast)?;
    let (devices, _) = candidates(setup.device)?;
    let Some(device) = devices.first() else { return Err(Failed::new("there is no device")) };
    let threads = match &args.threads[..] {
        _ if !device.is_cpu() => vec![setup.cpu.threads],
        [] if setup.cpu.threads > 1 => vec![1, setup.cpu.threads],
        [] => vec![1],
        given => given.to_vec(),
    };
    let mut text = String::new();
    doctor::machine(&mut text);
    let mut measured = Vec::new();
    for threads in threads {
        let measure = Measure { cpu: CpuOptions { threads, ..setup.cpu }, rounds: args.repetitions };
        measured.push(device.run(measure)?);
    }
    measured.iter().for_each(|measured| measured.describe(&mut text));
    text += "\n";
    for finding in findings(&measured, device) {
        let _ = writeln!(text, "{finding}");
    }
    print(&terminal::sanitized(&format!("```\n{text}```\n")))
}

/// Results with a number of threads.
struct Measured {
    label: String,
    threads: usize,
    /// Least and most bytes per second that the memory gave meanwhile.
    read: (f64, f64),
    products: Vec<Products>,
    /// Seconds of a small op.
    op: f64,
}

/// Speeds of products with weights of a format.
struct Products {
    format: Format,
    /// The device's, at the same time.
    peak: Speeds,
    /// Bytes of weights per second with one row.
    read: f64,
    /// Operations per second with each number of rows.
    operations: [f64; ROWS.len()],
}

impl Measured {
    fn describe(&self, text: &mut String) {
        let (least, most) = (self.read.0 / 1e9, self.read.1 / 1e9);
        let _ = writeln!(text, "\n{}: reads {least:.1} to {most:.1} GB/s", self.label);
        let _ = writeln!(
            text,
            "{:<8}  {:>11} {:>8}   {:>13} {:>8}   {:>15} {:>8}",
            "weights", "1 row, GB/s", "of read", "8 rows, GOP/s", "of peak", "512 rows, GOP/s", "of peak"
        );
        for Products { format, peak, read, operations } in &self.products {
            let of = |part: f64, whole: f64| format!("{:.0} %", 100.0 * part / whole);
            let _ = writeln!(
                text,
                "{:<8}  {:>11.1} {:>8}   {:>13.0} {:>8}   {:>15.0} {:>8}",
                format.name(),
                read / 1e9,
                of(*read, peak.read),
                operations[1] / 1e9,
                of(operations[1], peak.flops),
                operations[2] / 1e9,
                of(operations[2], peak.flops),
            );
        }
        let _ = writeln!(text, "an op of {SMALL} x {SMALL} weights takes {:.1} us", 1e6 * self.op);
    }
}

/// Sentences about results that are not as they should be.
fn findings(measured: &[Measured], device: &Device) -> Vec<String> {
    let mut found = Vec::new();
    for Measured { label, read: (least, most), .. } in measured {
        let varied = 1.0 - least / most;
        if varied > UNSTEADY {
            found.push(format!(
                "{label}: the memory's speed varied by {:.0} %. Others use this machine: run it again when it is quiet",
                100.0 * varied
            ));
        }
    }
    for Measured { label, products, .. } in measured {
        let slow = products.iter().filter(|p| p.read < SLOW_READ * p.peak.read);
        for Products { format, read, peak, .. } in slow {
            found.push(format!(
                "{label}: one row of {} reads {:.0} % of what the memory gives: the loop limits it, not the memory. Please \
                 report this table",
                format.name(),
                100.0 * read / peak.read
            ));
        }
    }
    if let ([one, .., all], true) = (measured, device.is_cpu()) {
        let prompts = |m: &Measured| m.products.iter().map(|p| p.operations[2]).sum::<f64>();
        let (more, times) = (all.threads as f64 / one.threads as f64, prompts(all) / prompts(one));
        if times < SLOW_THREAD * more {
            found.push(format!(
                "{} threads multiply {times:.1} times as fast as {}: hyperthreads, slower cores, or a limit on CPU time. Try \
                 fewer with -t",
                all.threads, one.threads
            ));
        }
    }
    if found.is_empty() {
        found.push("nothing stands out".to_owned());
    }
    found
}

/// Measures a device with a number of threads.
struct Measure {
    cpu: CpuOptions,
    rounds: usize,
}

impl Task for Measure {
    type Output = Measured;

    fn run<H: Hardware>(self, device: H) -> Result<Measured, Failed> {
        let b = device.open(self.cpu)?;
        let probe = b.probe()?;
        let shown = std::io::stderr().is_terminal();
        let mut read = (f64::INFINITY, 0f64);
        let mut products = Vec::new();
        for format in FORMATS {
            if shown {
                terminal::tell_here(&format!("\r\u{1b}[K{}: {} ", b.label(), format.name()));
            }
            let weights = random_weights(&b, format, OUTPUTS, INPUTS, PROBE_BYTES)?;
            let few = &weights[..weights.len().min(FEW)];
            let bytes: usize = weights.iter().filter_map(|w| w.weight.in_order()).map(Weight::bytes).sum();
            let (mut peak, mut seconds) = (Speeds::default(), [f64::INFINITY; ROWS.len()]);
            // The first round wakes threads, touches memory, compiles kernels.
            for round in 0..=self.rounds {
                let now = b.speeds(&probe, format)?;
                peak = peak.best(now);
                for (rows, least) in ROWS.into_iter().zip(&mut seconds) {
                    let took = once(&b, if rows == 1 { &weights } else { few }, rows, INPUTS)?;
                    if round > 0 {
                        *least = took.min(*least);
                    }
                }
                if round > 0 {
                    read = (now.read.min(read.0), now.read.max(read.1));
                }
            }
            let operations = |i: usize| {
                let layers = if ROWS[i] == 1 { weights.len() } else { few.len() };
                (2 * ROWS[i] * layers * OUTPUTS * INPUTS) as f64 / seconds[i]
            };
            let operations = std::array::from_fn(operations);
            products.push(Products { format, peak, read: bytes as f64 / seconds[0], operations });
        }
        if shown {
            terminal::tell_here("\r\u{1b}[K");
        }
        let small = random_weights(&b, Format::Q8_0, SMALL, SMALL, 1)?;
        let many: Vec<f64> = (0..self.rounds).map(|_| ops(&b, &small[0])).collect::<Result<_, _>>()?;
        let op = many.into_iter().fold(f64::INFINITY, f64::min);
        Ok(Measured { label: b.label(), threads: self.cpu.threads, read, products, op })
    }
}

/// Layers of random weights, together of at least so many bytes.
fn random_weights<B: MeasuredBackend>(
    b: &B,
    format: Format,
    outputs: usize,
    inputs: usize,
    bytes: usize,
) -> Result<Vec<LinearWeights<B>>, Failed> {
    let mut seed = 1u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as f32 / 65536.0 - 0.5
    };
    let row: Vec<f32> = (0..inputs).map(|_| noise()).collect();
    let mut packed = vec![0; format.row_bytes(inputs).unwrap_or(0)];
    tallow_quant::pack(format, &row, &mut packed).map_err(|e| Failed::new(e.to_string()))?;
    let packed = packed.repeat(outputs);
    let one = || {
        let weight = b.prepare(HostWeight::new(format, outputs, inputs, &packed))?;
        Ok(LinearWeights::new(weight, None))
    };
    (0..bytes.div_ceil(packed.len())).map(|_| one()).collect()
}

/// Seconds of a pass over all layers.
fn once<B: MeasuredBackend>(
    b: &B,
    layers: &[LinearWeights<B>],
    rows: usize,
    inputs: usize,
) -> Result<f64, Failed> {
    let x: Vec<f32> = (0..rows * inputs).map(|i| (i * 7 % 31) as f32 / 31.0 - 0.5).collect();
    let x = b.upload(&x, rows, inputs)?;
    b.sync()?;
    let begun = Instant::now();
    for weights in layers {
        b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE })?;
    }
    b.sync()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Seconds of a small op, of many in a row.
fn ops<B: MeasuredBackend>(b: &B, weights: &LinearWeights<B>) -> Result<f64, Failed> {
    const OPS: usize = 1000;
    let x = b.upload(&[0.5; SMALL], 1, SMALL)?;
    b.sync()?;
    let begun = Instant::now();
    for _ in 0..OPS {
        b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE })?;
    }
    b.sync()?;
    Ok(begun.elapsed().as_secs_f64() / OPS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a thread count, the memory's speed at least and at most, the read speed of one row, and operations of a prompt.
    fn measured(threads: usize, read: (f64, f64), row: f64, prompt: f64) -> Measured {
        let peak = Speeds { read: read.1, flops: 400e9 };
        let products =
            vec![Products { format: Format::Q4K, peak, read: row, operations: [50e9, 90e9, prompt] }];
        Measured { label: format!("cpu (avx2, {threads} threads)"), threads, read, products, op: 2e-6 }
    }

    #[test]
    fn what_stands_out_is_said() {
        let cpu = Device::cpu();
        let fine = [measured(1, (19e9, 20e9), 18e9, 100e9), measured(4, (38e9, 40e9), 33e9, 380e9)];
        assert_eq!(findings(&fine, &cpu), ["nothing stands out"]);
        let all = [measured(1, (9e9, 20e9), 18e9, 100e9), measured(8, (38e9, 40e9), 12e9, 410e9)];
        insta::assert_snapshot!(findings(&all, &cpu).join("\n"), @r"
        cpu (avx2, 1 threads): the memory's speed varied by 55 %. Others use this machine: run it again when it is quiet
        cpu (avx2, 8 threads): one row of Q4_K reads 30 % of what the memory gives: the loop limits it, not the memory. Please report this table
        8 threads multiply 4.1 times as fast as 1: hyperthreads, slower cores, or a limit on CPU time. Try fewer with -t
        ");
        assert_eq!(findings(&[measured(2, (1e9, 1e9), 1e9, 1e9)], &cpu), ["nothing stands out"]);
    }

    #[test]
    fn a_table_says_parts_of_the_peak() {
        let mut text = String::new();
        measured(2, (19e9, 20e9), 15e9, 300e9).describe(&mut text);
        insta::assert_snapshot!(text, @r"

        cpu (avx2, 2 threads): reads 19.0 to 20.0 GB/s
        weights   1 row, GB/s  of read   8 rows, GOP/s  of peak   512 rows, GOP/s  of peak
        Q4_K             15.0     75 %              90     22 %               300     75 %
        an op of 256 x 256 weights takes 2.0 us
        ");
    }
}
