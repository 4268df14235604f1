//! The values of one parameter of a sweep: a list, a range, or a draw.

use pleach_core::rng::Rng;
use serde::Deserialize;

use super::{
    MAX_CASES,
    quantity::{Quantity, Unit},
};

/// What is wrong with the values of a parameter, and what to write instead.
pub(super) type Mistake = (String, String);

/// The values of one parameter.
#[derive(Clone, Debug)]
pub(super) enum Axis {
    /// One value per draw.
    Drawn(Draw),
    /// Every value in turn, at least one.
    Each(Vec<toml::Value>),
}

/// A random value.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    /// Probability that the parameter gets a drawn value. Otherwise the value of the base scenario applies.
    chance: f64,
    distribution: Distribution,
}

#[derive(Clone, Debug)]
enum Distribution {
    /// One of the values, each with the same probability. At least one.
    Choice(Vec<toml::Value>),
    /// Integers from the first to the second, both included, with the same probability.
    Integer(i64, i64),
    /// Numbers whose logarithm is uniformly distributed.
    Log(Quantity, Quantity),
    /// Uniformly distributed numbers.
    Uniform(Quantity, Quantity),
}

/// A table of `[vary]`, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    from: Option<toml::Value>,
    to: Option<toml::Value>,
    step: Option<toml::Value>,
    count: Option<u32>,
    scale: Option<Scale>,
    draw: Option<Kind>,
    of: Option<Vec<toml::Value>>,
    chance: Option<f64>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Scale {
    #[default]
    Linear,
    Log,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Choice,
    Log,
    Uniform,
}

impl Axis {
    /// Whether `table` describes values, and is not a group of parameters.
    pub(super) fn is_written_in(table: &toml::Table) -> bool {
        let keys = [
            "from", "to", "step", "count", "scale", "draw", "of", "chance",
        ];
        keys.iter().any(|key| table.contains_key(*key))
    }

    /// Reads the values of a parameter.
    ///
    /// # Errors
    /// Returns the first mistake.
    pub(super) fn read(value: &toml::Value) -> Result<Self, Mistake> {
        match value {
            toml::Value::Array(values) if values.is_empty() => {
                Err(mistake("the list is empty", "write at least one value"))
            }
            toml::Value::Array(values) => Ok(Self::Each(values.clone())),
            toml::Value::Table(table) => Self::read_table(table),
            toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Float(_)
            | toml::Value::Integer(_)
            | toml::Value::String(_) => Err(mistake(
                "a single value",
                "write a list such as [\"10Mbit\", \"20Mbit\"], or set the value in the base scenario",
            )),
        }
    }

    fn read_table(table: &toml::Table) -> Result<Self, Mistake> {
        let written: Written = table.clone().try_into().map_err(|error: toml::de::Error| {
            let message = error.message().trim();
            match message.split_once(", expected ") {
                Some((problem, expected)) => mistake(problem, &format!("expected {expected}")),
                None => mistake(message, FORMS),
            }
        })?;
        match written.draw {
            Some(kind) => written.drawn(kind).map(Self::Drawn),
            None => written.range().map(Self::Each),
        }
    }

    /// Returns the number of values that are taken in turn. 1 for a draw.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Drawn(_) => 1,
            Self::Each(values) => u64::try_from(values.len()).unwrap_or(u64::MAX),
        }
    }

    /// Returns value number `index` of a list or a range, or the value that `rng` draws. `None` if the value of the
    /// base scenario applies.
    pub(super) fn value(&self, index: u64, rng: impl FnOnce() -> Rng) -> Option<toml::Value> {
        match self {
            Self::Drawn(draw) => draw.value(&mut rng()),
            Self::Each(values) => values.get(usize::try_from(index).ok()?).cloned(),
        }
    }

    /// Returns every text that can be a value.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let values = match self {
            Self::Drawn(Draw {
                distribution: Distribution::Choice(values),
                ..
            })
            | Self::Each(values) => values.as_slice(),
            Self::Drawn(_) => &[],
        };
        values.iter().filter_map(toml::Value::as_str)
    }
}

impl Draw {
    fn value(&self, rng: &mut Rng) -> Option<toml::Value> {
        let is_drawn = rng.chance(self.chance);
        let value = match &self.distribution {
            Distribution::Choice(values) => {
                let count = u64::try_from(values.len()).unwrap_or(u64::MAX);
                let index = usize::try_from(rng.below(count)).ok()?;
                values.get(index)?.clone()
            }
            Distribution::Integer(from, to) => {
                let count = to.abs_diff(*from).saturating_add(1);
                toml::Value::Integer(from.saturating_add_unsigned(rng.below(count)))
            }
            Distribution::Log(from, to) => between_log(*from, *to, rng.uniform()).write(),
            Distribution::Uniform(from, to) => between(*from, *to, rng.uniform()).write(),
        };
        is_drawn.then_some(value)
    }
}

impl Written {
    fn drawn(self, kind: Kind) -> Result<Draw, Mistake> {
        if self.step.is_some() || self.count.is_some() || self.scale.is_some() {
            return Err(mistake(
                "a draw has no `step`, `count` or `scale`",
                "write draw = \"log\" for a logarithmic scale; `draws` at the top of the file is the number of draws",
            ));
        }
        let chance = self.chance.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&chance) {
            return Err(mistake("`chance` is out of range", "use 0 to 1"));
        }
        let distribution = match (kind, self.of) {
            (Kind::Choice, Some(values)) if !values.is_empty() => Distribution::Choice(values),
            (Kind::Choice, _) => {
                return Err(mistake(
                    "draw = \"choice\" has no values",
                    "write them in a list: of = [\"cubic\", \"bbr\"]",
                ));
            }
            (Kind::Log | Kind::Uniform, Some(_)) => {
                return Err(mistake(
                    "`of` is for draw = \"choice\"",
                    "write `from` and `to`, or draw = \"choice\"",
                ));
            }
            (Kind::Log | Kind::Uniform, None) => {
                let is_log = kind == Kind::Log;
                let integers = self.from.as_ref().and_then(toml::Value::as_integer);
                let integers = integers.zip(self.to.as_ref().and_then(toml::Value::as_integer));
                let (from, to) = ends(self.from.as_ref(), self.to.as_ref(), is_log)?;
                match integers {
                    Some((from, to)) if !is_log => Distribution::Integer(from, to),
                    Some(_) | None if is_log => Distribution::Log(from, to),
                    Some(_) | None => Distribution::Uniform(from, to),
                }
            }
        };
        Ok(Draw {
            chance,
            distribution,
        })
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a number of values, which is checked"
    )]
    fn range(self) -> Result<Vec<toml::Value>, Mistake> {
        if self.of.is_some() || self.chance.is_some() {
            return Err(mistake("`of` and `chance` belong to a draw", FORMS));
        }
        let is_log = self.scale.unwrap_or_default() == Scale::Log;
        let (from, to) = ends(self.from.as_ref(), self.to.as_ref(), is_log)?;
        match (self.step, self.count) {
            (Some(step), None) if !is_log => {
                let step = Quantity::read(&step)
                    .map(|step| alike(step, from))
                    .filter(|step| step.unit == from.unit && step.value > 0.0)
                    .ok_or_else(|| {
                        mistake(
                            "`step` is not a positive number in the unit of `from`",
                            "write the step with its unit, such as step = \"10Mbit\"",
                        )
                    })?;
                // The tolerance accepts an end that the sum of the steps misses by rounding.
                let last = ((to.value - from.value) / step.value + 1e-9).floor();
                if last >= MAX_CASES as f64 {
                    return Err(too_many());
                }
                let at = |index: u64| Quantity {
                    value: from.value + step.value * index as f64,
                    unit: from.unit,
                };
                Ok((0..=last as u64).map(|index| at(index).write()).collect())
            }
            (None, Some(count @ 2..)) if u64::from(count) <= MAX_CASES => {
                let share = |index: u32| f64::from(index) / f64::from(count - 1);
                let at = |index| match is_log {
                    true => between_log(from, to, share(index)),
                    false => between(from, to, share(index)),
                };
                Ok((0..count).map(|index| at(index).write()).collect())
            }
            (None, Some(0 | 1)) => Err(mistake("`count` is too small", "use 2 or more")),
            (None, Some(_)) => Err(too_many()),
            (Some(_), None) => Err(mistake(
                "a logarithmic range has no `step`",
                "write `count` instead",
            )),
            (Some(_), Some(_)) => Err(mistake(
                "both `step` and `count` are given",
                "keep one of them",
            )),
            (None, None) => Err(mistake("the range has no step", FORMS)),
        }
    }
}

/// Reads the ends of a range or of a distribution.
fn ends(
    from: Option<&toml::Value>,
    to: Option<&toml::Value>,
    is_log: bool,
) -> Result<(Quantity, Quantity), Mistake> {
    let (Some(from), Some(to)) = (from, to) else {
        return Err(mistake("`from` or `to` is missing", FORMS));
    };
    let read = |value| {
        Quantity::read(value).ok_or_else(|| {
            mistake(
                &format!("{value} is not a number"),
                "write a number, a rate such as \"64Mbit\", a time such as \"6.5ms\", a size such as \"130kB\", or \"1.5bdp\"",
            )
        })
    };
    let (from, to) = (read(from)?, read(to)?);
    let (from, to) = (alike(from, to), alike(to, from));
    if from.unit != to.unit {
        return Err(mistake(
            "`from` and `to` have different units",
            "write both as rates, as times, as sizes or as numbers",
        ));
    }
    if to.value < from.value {
        return Err(mistake("`to` is below `from`", "exchange them"));
    }
    if is_log && from.value <= 0.0 {
        return Err(mistake(
            "a logarithmic scale cannot begin at 0",
            "write `from` above 0, or use a linear scale",
        ));
    }
    Ok((from, to))
}

/// Returns `quantity` as a number that need not be an integer, if `other` is such a number.
fn alike(quantity: Quantity, other: Quantity) -> Quantity {
    match (quantity.unit, other.unit) {
        (Unit::Count, Unit::Number) => Quantity {
            unit: Unit::Number,
            ..quantity
        },
        _ => quantity,
    }
}

fn between(from: Quantity, to: Quantity, share: f64) -> Quantity {
    let value = from.value + (to.value - from.value) * share;
    Quantity { value, ..from }
}

fn between_log(from: Quantity, to: Quantity, share: f64) -> Quantity {
    let value = from.value * (to.value / from.value).powf(share);
    Quantity { value, ..from }
}

fn mistake(problem: &str, remedy: &str) -> Mistake {
    (problem.to_owned(), remedy.to_owned())
}

fn too_many() -> Mistake {
    mistake(
        &format!("the range has more than {MAX_CASES} values"),
        "use a larger step",
    )
}

/// Forms in which values can be written.
const FORMS: &str = "write a list, { from, to, step }, { from, to, count, scale = \"linear\" or \"log\" }, { draw = \"uniform\" or \"log\", from, to }, or { draw = \"choice\", of = [...] }";
