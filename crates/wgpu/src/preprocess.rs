//! Preprocessor of the WGSL files in `shaders`.
//!
//! Each directive is a line of its own:
//!
//! - `#include "file.wgsl"`;
//! - `#if NAME`, `#if NAME == value`, `#if NAME != value`, `#elif`, `#else`, `#endif`: a number other than 0 is true;
//! - `#for I in 1..N` or `#for X in k v`, `#endfor`: the lines once for each value, for accumulators that must be
//!   variables of their own to stay in registers, and for bindings that differ in name only.
//!
//! `#{NAME}` in any line is replaced by the value of a define or of an enclosing `#for`, innermost first. Sizes need
//! neither: a define is also the value of the pipeline constant (`override`) of its name. Unknown names are errors, and
//! so are defines that nothing reads.

/// Value of a define.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u32),
    Name(&'static str),
    /// A `vec4<u32>`.
    Words([u32; 4]),
}

impl Value {
    /// The value as WGSL, or as a condition compares it.
    fn text(self) -> String {
        match self {
            Value::Number(n) => n.to_string(),
            Value::Name(name) => name.to_owned(),
            Value::Words([x, y, z, w]) => format!("vec4<u32>({x}u, {y}u, {z}u, {w}u)"),
        }
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Value {
        Value::Number(n as u32)
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Value {
        Value::Number(u32::from(is))
    }
}

impl From<&'static str> for Value {
    fn from(name: &'static str) -> Value {
        Value::Name(name)
    }
}

/// Name and value of a define.
pub(crate) type Define = (&'static str, Value);

/// A file by the name that `#include` gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub name: &'static str,
    pub text: &'static str,
}

/// A preprocessed file.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub wgsl: String,
    /// Values of the pipeline constants that the file declares.
    pub constants: Vec<(&'static str, f64)>,
    /// File and line of each line of `wgsl`.
    pub lines: Vec<(&'static str, usize)>,
}

impl Program {
    /// File and line of a line of `wgsl`, counted from 1, as the beginning of a message.
    pub(crate) fn place(&self, line: usize) -> String {
        let found = line.checked_sub(1).and_then(|i| self.lines.get(i));
        found.map_or(String::new(), |(file, line)| format!("{file}:{line}: "))
    }
}

/// Files that include each other without end are stopped at this depth.
const DEPTH: usize = 8;

/// Preprocesses `name.wgsl`, one of `files`. The error begins with file and line.
pub(crate) fn preprocess(files: &[File], name: &'static str, defines: &[Define]) -> Result<Program, String> {
    let used = vec![false; defines.len()];
    let mut expander =
        Expander { files, defines, used, loops: Vec::new(), depth: 0, out: Program::default() };
    expander.file(&format!("{name}.wgsl"), &|| "the kernel".to_owned())?;
    match expander.used.iter().position(|used| !used) {
        Some(i) => Err(format!("{name}.wgsl: nothing reads the define {}", defines[i].0)),
        None => Ok(expander.out),
    }
}

/// The lines of a file.
struct Input {
    file: &'static str,
    lines: Vec<&'static str>,
    /// Lines read so far.
    read: usize,
}

impl Input {
    fn next(&mut self) -> Option<&'static str> {
        let line = *self.lines.get(self.read)?;
        self.read += 1;
        Some(line)
    }

    /// The place of the line read last.
    fn place(&self) -> String {
        format!("{}:{}", self.file, self.read)
    }

    fn error<T>(&self, why: &str) -> Result<T, String> {
        Err(format!("{}: {why}", self.place()))
    }
}

/// A directive's word and its arguments.
type Directive = (&'static str, &'static str);

struct Expander<'a> {
    files: &'a [File],
    defines: &'a [Define],
    /// For each define, true if it has been read.
    used: Vec<bool>,
    /// Names and values of the enclosing `#for`s.
    loops: Vec<(&'static str, String)>,
    depth: usize,
    out: Program,
}

impl Expander<'_> {
    fn file(&mut self, name: &str, place: &dyn Fn() -> String) -> Result<(), String> {
        let file = self.files.iter().find(|file| file.name == name && self.depth < DEPTH);
        let file = file.ok_or_else(|| format!("{}: cannot include {name}", place()))?;
        self.depth += 1;
        let mut input = Input { file: file.name, lines: file.text.lines().collect(), read: 0 };
        let end = self.block(&mut input, true)?;
        self.depth -= 1;
        end.map_or(Ok(()), |(word, _)| input.error(&format!("#{word} without its beginning")))
    }

    /// Expands lines to the end of the file, or to the directive that ends the enclosing block and is returned. Where
    /// not `live`, only finds the end.
    fn block(&mut self, input: &mut Input, live: bool) -> Result<Option<Directive>, String> {
        while let Some(line) = input.next() {
            let directive = line.trim_start().strip_prefix('#').filter(|rest| !rest.starts_with('{'));
            let Some(directive) = directive else {
                if live {
                    self.line(line, input)?;
                }
                continue;
            };
            let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
            match word {
                "include" if live => {
                    let name = self.substitute(rest, input)?;
                    self.file(name.trim_matches('"'), &|| input.place())?;
                }
                "include" => {}
                "if" => self.choose(rest, input, live)?,
                "for" => self.repeat(rest, input, live)?,
                "elif" | "else" | "endif" | "endfor" => return Ok(Some((word, rest))),
                _ => return input.error(&format!("unknown directive #{word}")),
            }
        }
        Ok(None)
    }

    fn line(&mut self, line: &str, input: &Input) -> Result<(), String> {
        let line = self.substitute(line, input)?;
        if let Some((name, rest)) = line.strip_prefix("override ").and_then(|rest| rest.split_once(':')) {
            match self.defines.iter().position(|(define, _)| *define == name) {
                Some(i) => {
                    let (name, Value::Number(n)) = self.defines[i] else {
                        return input.error(&format!("{name} is no number"));
                    };
                    self.used[i] = true;
                    self.out.constants.push((name, f64::from(n)));
                }
                None if !rest.contains('=') => return input.error(&format!("{name} has no value")),
                None => {}
            }
        }
        self.out.wgsl += &line;
        self.out.wgsl.push('\n');
        self.out.lines.push((input.file, input.read));
        Ok(())
    }

    /// `#if` to `#endif`.
    fn choose(&mut self, condition: &str, input: &mut Input, live: bool) -> Result<(), String> {
        let begin = input.place();
        let mut taken = live && self.holds(condition, input)?;
        let (mut open, mut last) = (live && !taken, false);
        loop {
            match self.block(input, taken)? {
                Some(("elif", condition)) if !last => taken = open && self.holds(condition, input)?,
                Some(("else", _)) if !last => (taken, last) = (open, true),
                Some(("endif", _)) => return Ok(()),
                Some((word, _)) => return input.error(&format!("#{word} in the #if of {begin}")),
                None => return Err(format!("{begin}: #if without #endif")),
            }
            open &= !taken;
        }
    }

    fn holds(&mut self, condition: &str, input: &Input) -> Result<bool, String> {
        let condition = self.substitute(condition, input)?;
        Ok(match *condition.split_whitespace().collect::<Vec<_>>() {
            [name] => self.value(name, input)? != "0",
            [name, "==", value] => self.value(name, input)? == value,
            [name, "!=", value] => self.value(name, input)? != value,
            _ => return input.error("a condition is NAME, NAME == value or NAME != value"),
        })
    }

    /// `#for` to `#endfor`.
    fn repeat(&mut self, head: &'static str, input: &mut Input, live: bool) -> Result<(), String> {
        let (begin, place) = (input.read, input.place());
        let Some((name, values)) = head.split_once(" in ") else {
            return input.error("#for needs NAME in A..B, or NAME in words");
        };
        let values = if live { self.values(values, input)? } else { Vec::new() };
        let is_empty = values.is_empty();
        for value in values.into_iter().map(Some).chain(is_empty.then_some(None)) {
            input.read = begin;
            let live = value.is_some();
            self.loops.push((name, value.unwrap_or_default()));
            let end = self.block(input, live)?;
            self.loops.pop();
            match end {
                Some(("endfor", _)) => {}
                _ => return Err(format!("{place}: #for without #endfor")),
            }
        }
        Ok(())
    }

    /// The values of a `#for`: from A up to, but not including, B of `A..B`, or words.
    fn values(&mut self, values: &str, input: &Input) -> Result<Vec<String>, String> {
        let Some((from, to)) = values.split_once("..") else {
            return Ok(values.split_whitespace().map(str::to_owned).collect());
        };
        let mut number = |word: &str| match word.parse::<u32>() {
            Ok(n) => Ok(n),
            Err(_) => {
                self.value(word, input)?.parse().or_else(|_| input.error(&format!("{word} is no number")))
            }
        };
        Ok((number(from)?..number(to)?).map(|n| n.to_string()).collect())
    }

    /// Replaces each `#{NAME}`.
    fn substitute(&mut self, line: &str, input: &Input) -> Result<String, String> {
        let mut line = line.to_owned();
        // The last one contains no other.
        while let Some(begin) = line.rfind("#{") {
            let Some(len) = line[begin..].find('}') else {
                return input.error("#{ without }");
            };
            let value = self.value(&line[begin + 2..begin + len], input)?;
            line.replace_range(begin..=begin + len, &value);
        }
        Ok(line)
    }

    fn value(&mut self, name: &str, input: &Input) -> Result<String, String> {
        if let Some((_, value)) = self.loops.iter().rev().find(|(of, _)| *of == name) {
            return Ok(value.clone());
        }
        let Some(i) = self.defines.iter().position(|(define, _)| *define == name) else {
            return input.error(&format!("unknown name {name}"));
        };
        self.used[i] = true;
        Ok(self.defines[i].1.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Preprocesses `main.wgsl`, which may include `other.wgsl` and itself.
    fn run(main: &'static str, defines: &[Define]) -> Result<Program, String> {
        let other = File { name: "other.wgsl", text: "one\ntwo #{X}\n" };
        preprocess(&[File { name: "main.wgsl", text: main }, other], "main", defines)
    }

    fn wgsl(main: &'static str, defines: &[Define]) -> String {
        run(main, defines).unwrap().wgsl.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn error(main: &'static str, defines: &[Define]) -> String {
        run(main, defines).unwrap_err()
    }

    #[test]
    fn conditions_nest() {
        let main = "#if A\na\n#if B == two\nb\n#elif B == three\nc\n#else\nd\n#endif\ne\n#else\n#if B != two\nf\n#endif\n#endif\ng\n";
        let both = |a: usize, b: &'static str| wgsl(main, &[("A", a.into()), ("B", b.into())]);
        assert_eq!(both(1, "two"), "a b e g");
        assert_eq!(both(2, "three"), "a c e g");
        assert_eq!(both(1, "four"), "a d e g");
        assert_eq!(both(0, "two"), "g");
        assert_eq!(both(0, "three"), "f g");
    }

    #[test]
    fn loops_repeat_their_lines() {
        let main = "#for I in 0..N\n#for X in k v\n#{X}_#{I}\n#endfor\n#endfor\n#for I in 1..1\nnever\n#endfor\nend\n";
        assert_eq!(wgsl(main, &[("N", 2usize.into())]), "k_0 v_0 k_1 v_1 end");
        assert_eq!(
            wgsl("#for I in 0..2\n#{F_#{I}}\n#endfor\n", &[("F_0", "a".into()), ("F_1", "b".into())]),
            "a b"
        );
    }

    #[test]
    fn lines_are_traced_to_their_files() {
        let program =
            run("#if X\nzero\n#include \"other.wgsl\"\n#endif\nlast\n", &[("X", 1usize.into())]).unwrap();
        assert_eq!(program.wgsl, "zero\none\ntwo 1\nlast\n");
        let want = [("main.wgsl", 2), ("other.wgsl", 1), ("other.wgsl", 2), ("main.wgsl", 5)];
        assert_eq!(program.lines, want);
    }

    #[test]
    fn defines_are_values_of_overrides() {
        let program =
            run("override DIM: u32;\noverride HALF: u32 = DIM / 2u;\n", &[("DIM", 64usize.into())]).unwrap();
        assert_eq!(program.constants, [("DIM", 64.0)]);
        assert_eq!(error("override DIM: u32;\n", &[]), "main.wgsl:1: DIM has no value");
        assert_eq!(error("override DIM: u32;\n", &[("DIM", "x".into())]), "main.wgsl:1: DIM is no number");
    }

    #[test]
    fn mistakes_are_errors_with_their_places() {
        assert_eq!(error("a\n#{X}\n", &[]), "main.wgsl:2: unknown name X");
        assert_eq!(error("#if X\n#endif\n", &[]), "main.wgsl:1: unknown name X");
        assert_eq!(error("#include \"other.wgsl\"\n", &[]), "other.wgsl:2: unknown name X");
        assert_eq!(error("#for I in 0..N\n#endfor\n", &[]), "main.wgsl:1: unknown name N");
        assert_eq!(error("#for I in 0..N\n#endfor\n", &[("N", "x".into())]), "main.wgsl:1: N is no number");
        assert_eq!(error("a\n", &[("X", true.into())]), "main.wgsl: nothing reads the define X");
        assert_eq!(error("\n#if X\na\n", &[("X", true.into())]), "main.wgsl:2: #if without #endif");
        assert_eq!(error("#for I in 0..2\na\n", &[]), "main.wgsl:1: #for without #endfor");
        assert_eq!(error("a\n#endif\n", &[]), "main.wgsl:2: #endif without its beginning");
        let twice = "#if X\n#else\n#else\n#endif\n";
        assert_eq!(error(twice, &[("X", true.into())]), "main.wgsl:3: #else in the #if of main.wgsl:1");
        assert_eq!(
            error("#if X is 1\n#endif\n", &[]),
            "main.wgsl:1: a condition is NAME, NAME == value or NAME != value"
        );
        assert_eq!(error("#pragma once\n", &[]), "main.wgsl:1: unknown directive #pragma");
        assert_eq!(error("#include \"none.wgsl\"\n", &[]), "main.wgsl:1: cannot include none.wgsl");
        assert_eq!(error("#include \"main.wgsl\"\n", &[]), "main.wgsl:1: cannot include main.wgsl");
        assert_eq!(error("#{X\n", &[]), "main.wgsl:1: #{ without }");
    }
}
