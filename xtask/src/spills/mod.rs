//! `cargo xtask spills`: checks that the inner loops of the CPU kernels do not spill registers.
//!
//! Where a loop needs more registers than there are, the compiler spills some to the stack and reloads them. In a loop
//! that multiplies and adds those are accumulators, which slows the loop down, and only the machine code shows it. So
//! the code is read: a loop is found by its jumps, and a spill by a stack slot that the loop both writes and reads as a
//! whole vector.

mod listing;
mod loops;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use listing::{Function, Use, functions};

use crate::program::{output, program};

/// Part of the linker names of everything in the kernel crate, in both of Rust's mangling schemes.
const CRATE: &str = "10tallow_cpu";

/// Loops that may spill: those that the debug info places in all of these (functions or files).
struct Allowed {
    all: &'static [&'static str],
    /// At most this many registers.
    registers: usize,
    why: &'static str,
}

const ALLOWED: [Allowed; 5] = [
    Allowed {
        all: &["x86::Avx2", "gemm/gemv.rs"],
        registers: 20,
        why: "a line is two of the sixteen registers, and AVX2's products of bytes go through others before they are sums",
    },
    Allowed {
        all: &["x86::AvxVnni", "gemm/gemv.rs"],
        registers: 6,
        why: "a line is two of the sixteen registers: four rows have sums in all of them where runs are of 16 inputs, and masks \
              of three bits leave none for one row's; once in a part",
    },
    Allowed {
        all: &["tile_avx2"],
        registers: 16,
        why: "eight sums in 16 bits, weights and products take twelve of the sixteen registers, and leave few for the sums that \
              they are added to: once in a run, a hundred instructions or more. With fewer (sums that begin at zero, or one row) \
              it is slower",
    },
    Allowed {
        all: &["x86::Avx2", "src/attention/"],
        registers: 8,
        why: "twelve sums and what goes into them are all of the sixteen registers, and the compiler loads ahead",
    },
    Allowed {
        all: &["x86::Avx512", "src/attention/"],
        registers: 3,
        why: "the compiler loads ahead where a group has five or six rows; a fence against that costs more registers",
    },
];

/// A loop that spills.
#[derive(Debug, PartialEq, Eq)]
struct Spill {
    function: String,
    /// Address of the loop, and of the first spill.
    begin: u64,
    at: u64,
    /// Number of spilled registers.
    count: usize,
}

/// The spills in a listing, and the number of loops checked.
fn spills(listing: &str) -> (Vec<Spill>, usize) {
    let mut looked_at = 0;
    let mut found = Vec::new();
    for function in functions(listing).iter().filter(|f| f.name.contains(CRATE)) {
        for body in loops::innermost(function) {
            if body.iter().any(|i| function.body[*i].multiplies()) {
                looked_at += 1;
                found.extend(spill(function, &body));
            }
        }
    }
    (found, looked_at)
}

/// Registers that a loop spills.
fn spill(function: &Function<'_>, body: &[usize]) -> Option<Spill> {
    let has_frame = function.has_frame();
    let uses = body.iter().filter_map(|i| Some((function.body[*i].at, function.body[*i].slot(has_frame)?)));
    let (mut put, mut taken, mut arrays) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (at, used) in uses {
        match used {
            Use::Put(slot) => put.push((at, slot)),
            Use::Take(slot) => drop(taken.insert(slot)),
            Use::Address(place) => drop(arrays.insert(place)),
        }
    }
    put.retain(|(_, slot)| taken.contains(slot) && !arrays.contains(slot.0));
    let count = put.iter().map(|(_, slot)| slot).collect::<BTreeSet<_>>().len();
    let begin = function.body[*body.first()?].at;
    Some(Spill { function: function.name.to_owned(), begin, at: put.first()?.0, count })
}

/// Checks a program, or the one that the release build makes.
pub(crate) fn run(root: &Path, program: Option<&Path>) -> ExitCode {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        println!("spills: not looked for here: only code for x86-64 in Linux's files is read");
        return ExitCode::SUCCESS;
    }
    if Command::new("objdump").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("spills: objdump is not here (it is part of binutils)");
        return ExitCode::SUCCESS;
    }
    match try_run(root, program) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("spills: {why}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path, given: Option<&Path>) -> Result<bool, String> {
    let program = program(root, given)?;
    let (found, looked_at) = spills(&disassemble(&program)?);
    if looked_at == 0 {
        return Err(format!("{} has no loop of a kernel: are they named otherwise now?", program.display()));
    }
    let places = places(&program, &found)?;
    let (mut wrong, mut used) = (0, [false; ALLOWED.len()]);
    for (spill, place) in found.iter().zip(&places) {
        let within =
            |a: &Allowed| spill.count <= a.registers && a.all.iter().all(|part| place.contains(part));
        let allowed = ALLOWED.iter().position(within);
        match allowed {
            Some(i) => used[i] = true,
            None => {
                wrong += 1;
                let Spill { function, begin, at, count } = spill;
                eprintln!(
                    "error: {function}: the loop at {begin:x} puts {count} registers aside, first at {at:x}:"
                );
                place
                    .lines()
                    .filter(|line| line.contains("crates/cpu/"))
                    .for_each(|line| eprintln!("    {line}"));
            }
        }
    }
    ALLOWED.iter().zip(used).filter(|(_, used)| !used).for_each(|(a, _)| {
        println!("note: nothing needs leave in {} any more ({}): strike it out", a.all.join(", "), a.why);
    });
    let (loops, left) = (found.len(), found.len() - wrong);
    println!("spills: of {looked_at} loops {loops} put registers aside, {left} of them with leave");
    if wrong > 0 {
        eprintln!(
            "spills: give these loops less to hold at a time, or say in xtask/src/spills/mod.rs why they may"
        );
    }
    Ok(wrong == 0)
}

/// Disassembly of a program from the first kernel to the last.
fn disassemble(program: &Path) -> Result<String, String> {
    let symbols = output(Command::new("objdump").arg("--syms").arg(program))?;
    // Address, flags, section and a tab; size and name.
    let ours = symbols.lines().filter(|line| line.contains(CRATE)).filter_map(|line| {
        let (address, size) = (line.split(' ').next()?, line.split('\t').nth(1)?.split(' ').next()?);
        let address = u64::from_str_radix(address, 16).ok()?;
        line.contains(" F ").then_some(address..address + u64::from_str_radix(size, 16).ok()?)
    });
    let ours: Vec<_> = ours.collect();
    let (Some(start), Some(end)) = (ours.iter().map(|r| r.start).min(), ours.iter().map(|r| r.end).max())
    else {
        return Err(format!("{} has no names of kernels: was it stripped?", program.display()));
    };
    let mut objdump = Command::new("objdump");
    objdump.args(["--disassemble", "--no-show-raw-insn", "--disassembler-options=att"]);
    objdump.arg(format!("--start-address={start}")).arg(format!("--stop-address={end}"));
    output(objdump.arg(program))
}

/// Source position of each spill: the inlined functions, innermost first.
fn places(program: &Path, spills: &[Spill]) -> Result<Vec<String>, String> {
    if spills.is_empty() {
        // Without addresses addr2line would wait for standard input.
        return Ok(Vec::new());
    }
    let mut command = Command::new("addr2line");
    command
        .args(["--addresses", "--inlines", "--functions", "--demangle", "--pretty-print", "--exe"])
        .arg(program);
    command.args(spills.iter().map(|spill| format!("{:x}", spill.at)));
    let text = output(&mut command)?;
    let mut places: Vec<String> = Vec::new();
    for line in text.lines() {
        match places.last_mut() {
            Some(place) if line.starts_with(" (inlined by)") => *place += &format!("\n{}", line.trim_start()),
            _ => places.push(line.to_owned()),
        }
    }
    match places.len() == spills.len() {
        true => Ok(places),
        false => Err("addr2line gives another number of places than it was asked for".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// objdump's output for a function of the kernel crate with four bytes per instruction. `@` is its beginning.
    fn listing(name: &str, instructions: &[&str]) -> String {
        let line = |(i, text): (usize, &&str)| format!("  {:x}:\t{text}\n", 0x1000 + 4 * i);
        format!("0000000000001000 <{name}>:\n")
            + &instructions.iter().enumerate().map(line).collect::<String>()
    }

    /// Number of spilled registers of each loop of such a function, and the number of loops that multiply.
    fn counts(instructions: &[&str]) -> (Vec<usize>, usize) {
        let text = listing("_ZN10tallow_cpu7kernels4test17h0E", instructions);
        let (found, looked_at) = spills(&text);
        (found.iter().map(|spill| spill.count).collect(), looked_at)
    }

    #[test]
    fn a_register_that_is_put_aside_is_found() {
        let code = [
            "vmovups (%rdi),%zmm1",
            // 1004: the loop.
            "vpdpbusd (%rsi),%zmm2,%zmm1",
            "vmovaps %zmm1,0x40(%rsp)",
            "vfmadd231ps 0x40(%rsp),%zmm3,%zmm4",
            "vmovups %zmm5,0x80(%rsp)",
            "vaddps 0x80(%rsp),%zmm4,%zmm4",
            "dec    %rcx",
            "jne    1004 <_ZN10tallow_cpu7kernels4test17h0E+0x4>",
            "ret",
        ];
        let (found, looked_at) = spills(&listing("_ZN10tallow_cpu7kernels4test17h0E", &code));
        let (begin, at) = (0x1004, 0x1008);
        let function = "_ZN10tallow_cpu7kernels4test17h0E".to_owned();
        assert_eq!((found, looked_at), (vec![Spill { function, begin, at, count: 2 }], 1));
        // Functions of other crates are ignored.
        assert_eq!(spills(&listing("_ZN4core3ptr17h0E", &code)), (vec![], 0));
    }

    #[test]
    fn what_is_not_put_aside_is_left_alone() {
        let around = |middle: &[&str]| {
            let body = [&["vfmadd231ps %zmm1,%zmm2,%zmm3"], middle, &["jne    1000 <f>", "ret"]].concat();
            counts(&body)
        };
        let spill = ["vmovaps %ymm1,0x40(%rbp)", "vmovaps 0x40(%rbp),%ymm1"];
        // Without a frame rbp is a general-purpose register; with one it addresses the stack.
        assert_eq!(around(&spill), (vec![], 1));
        assert_eq!(around(&[&["mov    %rsp,%rbp"], &spill[..]].concat()), (vec![1], 1));
        // Not spills: stored only, loaded only, different widths, an array by its index and by its address, a
        // broadcast.
        for fine in [
            &["vmovaps %zmm1,0x40(%rsp)"][..],
            &["vmovaps 0x40(%rsp),%zmm1"],
            &["vmovaps %ymm1,0x40(%rsp)", "vpmovzxwd 0x40(%rsp),%zmm1"],
            &["vmovaps %zmm1,0x40(%rsp,%rax,4)", "vmovaps 0x40(%rsp,%rax,4),%zmm1"],
            &["vmovaps %zmm1,0x40(%rsp)", "lea    0x40(%rsp),%rdi", "vmovaps 0x40(%rsp),%zmm1"],
            &["vmovss %xmm1,0x40(%rsp)", "vaddps 0x40(%rsp){1to16},%zmm1,%zmm1"],
            &["vmovaps %zmm1,0x40(%rsi)", "vmovaps 0x40(%rsi),%zmm1"],
        ] {
            assert_eq!(around(fine), (vec![], 1), "{fine:?}");
        }
    }

    #[test]
    fn only_innermost_loops_that_multiply_count() {
        let code = [
            // 1000: the outer loop spills its sums, which costs nothing.
            "vmovaps %zmm1,(%rsp)",
            // 1004: the inner loop, entered in the middle.
            "jmp    100c <f>",
            "vpdpwssd (%rsi),%zmm2,%zmm1",
            "cmp    %rax,%rcx",
            "jne    1008 <f>",
            "vmovaps (%rsp),%zmm1",
            "jne    1000 <f>",
            // 101c: a loop that does not multiply.
            "vmovaps %zmm1,0x40(%rsp)",
            "vmovaps 0x40(%rsp),%zmm1",
            "jne    101c <f>",
            "ret",
        ];
        assert_eq!(counts(&code), (vec![], 1));
        // A loop that is left by a panic does not continue with the code after it.
        let code = [
            "vpmaddwd %ymm1,%ymm2,%ymm3",
            "je     100c <f>",
            "jne    1000 <f>",
            "call   2000 <_ZN4core9panicking5panic17h0E>",
            "vmovaps %ymm1,0x40(%rsp)",
            "vmovaps 0x40(%rsp),%ymm1",
            "jmp    1000 <f>",
        ];
        assert_eq!(counts(&code), (vec![], 1));
    }
}
