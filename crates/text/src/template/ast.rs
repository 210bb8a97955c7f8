//! Abstract syntax tree of a template.

use std::sync::Arc;

/// A list of statements.
pub(super) type Body = Vec<Statement>;

/// A statement and its line.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Text(Box<str>),
    Print(Expr),
    /// Conditions with their bodies, then the `else` body.
    If(Vec<(Expr, Body)>, Body),
    For(Arc<Loop>),
    Set(Target, Expr),
    /// Assigns a body's output, passed through filters.
    SetBlock(Target, Vec<Call>, Body),
    Macro(Arc<Macro>),
    /// A call of a macro, with the body as its `caller`.
    CallBlock(Expr, Arc<Macro>),
    /// Prints a body's output, passed through filters.
    Filter(Vec<Call>, Body),
    With(Vec<(Target, Expr)>, Body),
    /// A block that a template which extends this one could override: whether it is `scoped` (sees the variables around
    /// it), and its body.
    Block(bool, Body),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) only_if: Option<Expr>,
    pub(super) body: Body,
    pub(super) otherwise: Body,
    pub(super) recursive: bool,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    /// Names with their defaults.
    pub(super) parameters: Vec<(Arc<str>, Option<Expr>)>,
    /// True if the body reads `varargs` (additional positional arguments), and `kwargs` (additional named ones).
    pub(super) takes_more: bool,
    pub(super) takes_named: bool,
    pub(super) body: Body,
}

/// Target of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    /// A member of a namespace.
    Member(Arc<str>, Arc<str>),
    Several(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Box<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// Operators of one precedence, left-associative.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    /// `~`: concatenates the text of all parts.
    Join(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// Condition and value, then the value of `else`.
    Choice(Box<[Expr; 2]>, Option<Box<Expr>>),
    /// A value and its postfix operations, in order.
    Chain(Box<Expr>, Vec<Link>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// A postfix operation.
#[derive(Debug)]
pub(super) enum Link {
    Member(Arc<str>),
    Item(Expr),
    Slice([Option<Expr>; 3]),
    Call(Arguments),
    Filter(Call),
    /// A test, and whether it is negated.
    Test(Call, bool),
}

/// A filter or a test.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: Box<str>,
    pub(super) arguments: Arguments,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) plain: Vec<Expr>,
    pub(super) named: Vec<(Box<str>, Expr)>,
    /// `*args` and `**kwargs`.
    pub(super) rest: Option<Box<Expr>>,
    pub(super) named_rest: Option<Box<Expr>>,
}
