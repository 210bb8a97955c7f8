//! Statements: bodies, assignments, loops and macros.

use std::rc::Rc;
use std::sync::Arc;

use super::super::Failure;
use super::super::ast::{Body, Call, Expr, Link, Loop as LoopNode, Macro, Operator, Statement, Target, What};
use super::super::value::{Closure, Kind, Loop, Metered, Text, Value};
use super::{CallArgs, Done, Flow, MOST_OUTPUT, Run, TEMPLATE_SCOPE};

impl Run<'_> {
    pub(super) fn body(&mut self, body: &[Statement]) -> Done<Flow> {
        self.deeper(|run| {
            for statement in body {
                run.line = statement.line;
                match run.statement(&statement.what)? {
                    Flow::Next => {}
                    flow => return Ok(flow),
                }
            }
            Ok(Flow::Next)
        })
    }

    fn write(&mut self, text: &str) -> Done<()> {
        self.copied(text.len())?;
        if self.out.len() + text.len() > MOST_OUTPUT {
            return Err(Failure::Limit("writes too much"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn print(&mut self, value: &Value) -> Done<()> {
        if let Value::Str(text) = value {
            return self.write(&text.of);
        }
        if let Value::Space(_) = value {
            let Value::Str(text) = self.as_text(value)? else { return Ok(()) };
            return self.write(&text.of);
        }
        let before = self.out.len();
        if !value.write(&mut self.out, MOST_OUTPUT) {
            return Err(Failure::Limit("writes too much"));
        }
        self.spend(self.out.len() - before)
    }

    fn statement(&mut self, what: &What) -> Done<Flow> {
        match what {
            What::Text(text) => self.write(text)?,
            What::Print(value) => {
                let value = self.eval(value)?;
                self.print(&value)?;
            }
            What::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            What::For(node) => {
                let over = self.eval(&node.over)?;
                self.for_loop(node, over, 0, self.scope)?;
            }
            What::Set(target, value) => {
                if !self.grow(target, value)? {
                    let value = self.eval(value)?;
                    self.assign(target, value)?;
                }
            }
            What::SetBlock(target, filters, body) => {
                let value = self.captured(|run| run.body_in_scope(body))?;
                let value = self.filtered(value, filters)?;
                self.assign(target, value)?;
            }
            What::Macro(node) => {
                let closure = self.closure(node);
                self.set(&node.name, closure);
            }
            What::CallBlock(call, body) => {
                let caller = self.closure(body);
                let value = self.call_with(call, Some(("caller", caller)))?;
                self.print(&value)?;
            }
            What::Filter(filters, body) => {
                let value = self.captured(|run| run.body_in_scope(body))?;
                let value = self.filtered(value, filters)?;
                self.print(&value)?;
            }
            What::With(values, body) => {
                // All values are evaluated in the outer scope.
                let values = values.iter().map(|(target, value)| Ok((target, self.eval(value)?)));
                let values: Vec<(&Target, Value)> = values.collect::<Done<_>>()?;
                return self.scoped(self.scope, |run| {
                    for (target, value) in values {
                        run.assign(target, value)?;
                    }
                    run.body(body)
                });
            }
            What::Block(scoped, body) => {
                // Blocks see the variables of the template, but not those of the loops around them.
                let parent = if *scoped { self.scope } else { TEMPLATE_SCOPE };
                self.scoped(parent, |run| run.body(body).map(|_| ()))?;
            }
            What::Break => return Ok(Flow::Break),
            What::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn body_in_scope(&mut self, body: &Body) -> Done<()> {
        self.scoped(self.scope, |run| run.body(body).map(|_| ()))
    }

    fn closure(&mut self, of: &Arc<Macro>) -> Value {
        self.closures += 1;
        Value::Macro(Rc::new(Closure { of: of.clone(), scope: self.scope }))
    }

    /// The output of a part, as a value.
    fn captured(&mut self, part: impl FnOnce(&mut Self) -> Done<()>) -> Done<Value> {
        let outer = std::mem::take(&mut self.out);
        let done = part(self);
        let written = std::mem::replace(&mut self.out, outer);
        done?;
        self.text(written)
    }

    fn filtered(&mut self, value: Value, filters: &[Call]) -> Done<Value> {
        filters.iter().try_fold(value, |value, filter| {
            let args = self.arguments(&filter.arguments)?;
            self.filter(&filter.name, value, args)
        })
    }

    fn assign(&mut self, target: &Target, value: Value) -> Done<()> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Member(space, name) => {
                let Some(Value::Space(at)) = self.get(space) else {
                    return Err(Failure::wrong(format!(
                        "{space:?} is no namespace, so it has nothing to set"
                    )));
                };
                let at = *at;
                self.set_member(at, name, value)?;
            }
            Target::Several(targets) => {
                let values = self.items(&value)?;
                if values.len() != targets.len() {
                    let why = format!("{} values for {} names", values.len(), targets.len());
                    return Err(Failure::wrong(why));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value)?;
                }
            }
        }
        Ok(())
    }

    /// Runs `{% set space.name = space.name ~ more %}`, and the same with `+`, by appending in place: otherwise a
    /// template that accumulates its output would copy all of it for each piece. False if the statement has another
    /// form.
    fn grow(&mut self, target: &Target, value: &Expr) -> Done<bool> {
        let Target::Member(space, name) = target else { return Ok(false) };
        let (first, rest): (&Expr, Vec<&Expr>) = match value {
            Expr::Join(parts) => match parts.split_first() {
                Some((first, rest)) => (first, rest.iter().collect()),
                None => return Ok(false),
            },
            Expr::Arithmetic(first, rest) if rest.iter().all(|(operator, _)| *operator == Operator::Add) => {
                (first, rest.iter().map(|(_, part)| part).collect())
            }
            _ => return Ok(false),
        };
        let Expr::Chain(start, links) = first else { return Ok(false) };
        let same = matches!(&**start, Expr::Name(of) if of == space)
            && matches!(links.as_slice(), [Link::Member(of)] if of == name);
        let Some(Value::Space(at)) = self.get(space).filter(|_| same) else { return Ok(false) };
        let at = *at;
        let Some(Value::Str(old)) = self.spaces[at].get(name).cloned() else { return Ok(false) };
        let rest: Vec<Value> = rest.into_iter().map(|part| self.eval(part)).collect::<Done<_>>()?;
        let joins = matches!(value, Expr::Join(_));
        let plain = |value: &Value| matches!(value, Value::Str(text) if !text.of.safe);
        if old.of.safe || !(joins || rest.iter().all(plain)) {
            let mut all = vec![Value::Str(old)];
            all.extend(rest);
            let mut all = all.into_iter();
            let whole = if joins {
                self.joined(all.as_slice(), "")?
            } else {
                let first = all.next().unwrap_or(Value::None);
                all.try_fold(first, |sum, part| self.arithmetic(Operator::Add, &sum, &part))?
            };
            self.set_member(at, name, whole)?;
            return Ok(true);
        }
        let mut more = String::new();
        for part in &rest {
            self.append(part, &mut more)?;
        }
        // A string that grows may have twice its length as capacity.
        self.room(2 * (old.of.len() + more.len()))?;
        self.copied(more.len())?;
        if let Some(Value::Str(there)) = self.spaces[at].get_mut(name).filter(|there| is(there, &old)) {
            drop(old);
            if let Some(there) = Rc::get_mut(there) {
                there.push_str(&more);
                return Ok(true);
            }
            more.insert_str(0, &there.of.text);
        } else {
            // Evaluating the appended parts has changed the member meanwhile.
            more.insert_str(0, &old.of.text);
        }
        self.copied(more.len())?;
        let whole = self.text(more)?;
        self.set_member(at, name, whole)?;
        Ok(true)
    }

    fn for_loop(&mut self, node: &Arc<LoopNode>, over: Value, depth: usize, scope: usize) -> Done<()> {
        let mut items = self.items(&over)?;
        if let Some(condition) = &node.only_if {
            let mut kept = Vec::new();
            for item in items {
                self.scoped(scope, |run| {
                    run.assign(&node.target, item.clone())?;
                    if run.eval(condition)?.is_true() {
                        kept.push(item);
                    }
                    Ok(())
                })?;
            }
            items = kept;
        }
        if items.is_empty() {
            return self.scoped(scope, |run| run.body(&node.otherwise).map(|_| ()));
        }
        let count = items.len();
        let Value::List(items) = self.list(items)? else { return Ok(()) };
        let again = node.recursive.then(|| node.clone());
        let mut last = None;
        for at in 0..count {
            let this = Loop {
                items: items.clone(),
                at,
                depth,
                again: again.clone(),
                scope,
                last: last.take().into(),
            };
            let this = Rc::new(this);
            let flow = self.scoped(scope, |run| {
                let name = run.loop_name.clone();
                run.set(&name, Value::Loop(this.clone()));
                run.assign(&node.target, items.of.items[at].clone())?;
                run.body(&node.body)
            })?;
            last = this.last.take();
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Runs a recursive loop for an inner list, and returns its output.
    pub(in super::super) fn recurse(&mut self, this: &Loop, over: Value) -> Done<Value> {
        let Some(node) = this.again.clone() else {
            return Err(Failure::wrong("the loop is not recursive"));
        };
        let (depth, scope) = (this.depth + 1, this.scope);
        self.deeper(|run| run.captured(|run| run.for_loop(&node, over, depth, scope)))
    }

    /// Calls a macro and returns its output.
    pub(in super::super) fn call_macro(&mut self, closure: &Closure, mut args: CallArgs) -> Done<Value> {
        let of = closure.of.clone();
        self.deeper(|run| {
            run.captured(|run| {
                run.scoped(closure.scope, |run| {
                    run.bind(&of, &mut args)?;
                    run.body(&of.body).map(|_| ())
                })
            })
        })
    }

    /// Binds a macro's parameters to the arguments.
    fn bind(&mut self, of: &Macro, args: &mut CallArgs) -> Done<()> {
        let wrong = |why: String| Err(Failure::wrong(format!("macro '{}' {why}", of.name)));
        let mut plain = std::mem::take(&mut args.plain).into_iter();
        for (name, default) in &of.parameters {
            let named = args.named.iter().position(|(named, _)| **named == **name);
            let value = match (plain.next(), named) {
                (Some(_), Some(_)) => return wrong(format!("was given '{name}' twice")),
                (Some(value), None) => value,
                (None, Some(at)) => args.named.swap_remove(at).1,
                (None, None) => match default {
                    Some(default) => self.eval(default)?,
                    None => Value::undefined(name),
                },
            };
            self.set(name, value);
        }
        if let Some(at) = args.named.iter().position(|(name, _)| &**name == "caller") {
            let caller = args.named.swap_remove(at).1;
            self.set_new("caller", caller);
        }
        if of.takes_more {
            let more = self.sequence(plain.by_ref().collect(), Kind::Tuple)?;
            self.set_new("varargs", more);
        }
        if of.takes_named {
            let named = std::mem::take(&mut args.named);
            let pairs: Vec<(Value, Value)> =
                named.into_iter().map(|(name, value)| Ok((self.text(name)?, value))).collect::<Done<_>>()?;
            let named = self.dict(pairs)?;
            self.set_new("kwargs", named);
        }
        if plain.next().is_some() {
            return wrong(format!("takes not more than {} argument(s)", of.parameters.len()));
        }
        match args.named.first() {
            Some((name, _)) => wrong(format!("takes no keyword argument '{name}'")),
            None => Ok(()),
        }
    }

    /// Evaluates a call and makes it, with `more` as an additional named argument.
    fn call_with(&mut self, call: &Expr, more: Option<(&str, Value)>) -> Done<Value> {
        let Expr::Chain(start, links) = call else { return Err(Failure::wrong("is no call")) };
        let mut value = self.eval(start)?;
        let last = links.len().saturating_sub(1);
        for (i, link) in links.iter().enumerate() {
            value = match link {
                Link::Call(arguments) if i == last => {
                    let mut args = self.arguments(arguments)?;
                    args.named.extend(more.clone().map(|(name, value)| (name.into(), value)));
                    self.call(&value, args)?
                }
                link => self.link(value, link)?,
            };
        }
        Ok(value)
    }
}

/// True if `value` is this very text (the same allocation).
fn is(value: &Value, text: &Rc<Metered<Text>>) -> bool {
    matches!(value, Value::Str(other) if Rc::ptr_eq(other, text))
}
