//! objdump's output as [`Function`]s of [`Instruction`]s, in AT&T syntax: sources first, destination last.

/// A function.
#[derive(Debug)]
pub(super) struct Function<'a> {
    /// Linker name.
    pub name: &'a str,
    pub body: Vec<Instruction<'a>>,
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction<'a> {
    pub at: u64,
    text: &'a str,
}

/// A stack slot of a vector register's size: its address and the register's letter.
pub(super) type Slot<'a> = (&'a str, char);

/// An instruction's use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use<'a> {
    Put(Slot<'a>),
    Take(Slot<'a>),
    /// Its address is taken: it belongs to an array and is not a spill slot.
    Address(&'a str),
}

/// All functions of a listing.
pub(super) fn functions(listing: &str) -> Vec<Function<'_>> {
    let mut functions: Vec<Function<'_>> = Vec::new();
    for line in listing.lines() {
        let Some((at, rest)) = line.trim_start().split_once([' ', ':']) else { continue };
        let Ok(at) = u64::from_str_radix(at, 16) else { continue };
        if let Some(name) = rest.strip_prefix('<').and_then(|rest| rest.strip_suffix(">:")) {
            functions.push(Function { name, body: Vec::new() });
        } else if let Some(function) = functions.last_mut() {
            function.body.push(Instruction { at, text: rest.trim() });
        }
    }
    functions
}

impl Function<'_> {
    /// True if `rbp` is the frame pointer. If not, it is a general-purpose register.
    pub(super) fn has_frame(&self) -> bool {
        self.body.iter().any(|i| i.name() == "mov" && i.operands() == "%rsp,%rbp")
    }
}

impl<'a> Instruction<'a> {
    fn name(self) -> &'a str {
        self.text.split_whitespace().next().unwrap_or_default()
    }

    fn operands(self) -> &'a str {
        self.text.strip_prefix(self.name()).unwrap_or_default().trim()
    }

    /// The jump target, if it is given directly and not through a table.
    pub(super) fn target(self) -> Option<u64> {
        let jumps = self.name().starts_with('j');
        u64::from_str_radix(self.operands().split_whitespace().next().filter(|_| jumps)?, 16).ok()
    }

    /// True if control never falls through to the next instruction. It does not after a call that panics, recognised by
    /// name.
    pub(super) fn ends(self) -> bool {
        const PANICS: [&str; 5] = ["panic", "fail", "handle_error", "abort", "_Unwind_Resume"];
        match self.name() {
            "call" => PANICS.iter().any(|part| self.operands().contains(part)),
            name => ["jmp", "notrack", "ret", "ud2"].iter().any(|end| name.starts_with(end)),
        }
    }

    /// True if it multiplies and adds, as the kernels' inner loops do.
    pub(super) fn multiplies(self) -> bool {
        const WORK: [&str; 8] =
            ["vpdp", "vpmaddubsw", "vpmaddwd", "vfmadd", "vfmsub", "vfnmadd", "vdpbf16ps", "tdp"];
        WORK.iter().any(|work| self.name().starts_with(work))
    }

    /// Its use of a stack slot. An address that depends on another register belongs to an array, and loads that widen
    /// or broadcast read less than a vector.
    pub(super) fn slot(self, has_frame: bool) -> Option<Use<'a>> {
        let operands = self.operands();
        let mut end = ["(%rsp)", "(%rbp)"][..1 + usize::from(has_frame)].iter();
        let end = end.find_map(|base| Some(operands.find(base)? + base.len()))?;
        let begin = operands[..end].rfind(',').map_or(0, |comma| comma + 1);
        let (place, rest) = (&operands[begin..end], &operands[end..]);
        let letter = |text: &str| ['z', 'y', 'x'].into_iter().find(|c| text.contains(&format!("%{c}mm")));
        if self.name() == "lea" {
            return Some(Use::Address(place));
        }
        const PARTS: [&str; 5] = ["vpmovzx", "vpmovsx", "vcvtph2ps", "vpbroadcast", "vbroadcast"];
        if rest.starts_with("{1to") || PARTS.iter().any(|part| self.name().starts_with(part)) {
            return None;
        }
        match rest.contains(',') {
            true => Some(Use::Take((place, letter(rest)?))),
            false => Some(Use::Put((place, letter(&operands[..begin])?))),
        }
    }
}
