//! A figure: what was measured, against what, and what it was meant to be.
//!
//! Its own file because the table, the JSON and the chart show the same thing; the verdict is decided here, once.

use serde::Serialize;

use crate::stats::Samples;

/// A measured value, with its worst per cent if it comes from samples.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The median, or the value itself.
    pub value: f64,
    /// The worst per cent, whichever direction is worse.
    pub p99: Option<f64>,
    pub n: usize,
}

/// What a target speaks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// The figure itself.
    Value,
    /// The figure divided by the direct one.
    Ratio,
    /// The figure less the direct one.
    Added,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost,
    AtLeast,
}

#[derive(Debug, Clone, Serialize)]
pub struct Target {
    pub of: Of,
    pub bound: Bound,
    pub limit: f64,
    pub measured: Option<f64>,
    pub met: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub bench: char,
    pub name: String,
    pub unit: &'static str,
    pub wharf: Option<Measured>,
    pub direct: Option<Measured>,
    pub ratio: Option<f64>,
    pub targets: Vec<Target>,
    pub note: String,
}

// === impl Measured ===

impl Measured {
    fn of(samples: &Samples) -> Self {
        Self {
            value: samples.median(),
            p99: (samples.len() > 1).then(|| samples.p99()),
            n: samples.len(),
        }
    }

    /// For what is better when larger: the worst per cent is the lowest.
    fn of_rates(samples: &Samples) -> Self {
        Self {
            p99: (samples.len() > 1).then(|| samples.quantile(0.01)),
            ..Self::of(samples)
        }
    }

    fn scalar(value: f64) -> Self {
        Self { value, p99: None, n: 1 }
    }
}

// === impl Figure ===

impl Figure {
    pub fn new(bench: char, name: impl Into<String>, unit: &'static str) -> Self {
        Self {
            bench,
            name: name.into(),
            unit,
            wharf: None,
            direct: None,
            ratio: None,
            targets: Vec::new(),
            note: String::new(),
        }
    }

    /// A benchmark that broke off; a target never met, so that nobody overlooks it.
    pub fn failed(bench: char, why: &str) -> Self {
        let mut figure = Self::new(bench, "did not finish", "").note(why.replace('\n', " "));
        figure.targets.push(Target {
            of: Of::Value,
            bound: Bound::AtMost,
            limit: 0.0,
            measured: None,
            met: false,
        });
        figure
    }

    pub fn samples(mut self, samples: &Samples) -> Self {
        self.wharf = Some(Measured::of(samples));
        self
    }

    /// Samples of what is better when larger, ours and direct.
    pub fn rates(mut self, wharf: &Samples, direct: &Samples) -> Self {
        self.wharf = Some(Measured::of_rates(wharf));
        self.direct = Some(Measured::of_rates(direct));
        self.divide()
    }

    pub fn value(mut self, value: f64) -> Self {
        self.wharf = Some(Measured::scalar(value));
        self
    }

    pub fn direct(mut self, samples: &Samples) -> Self {
        self.direct = Some(Measured::of(samples));
        self.divide()
    }

    pub fn direct_value(mut self, value: f64) -> Self {
        self.direct = Some(Measured::scalar(value));
        self.divide()
    }

    fn divide(mut self) -> Self {
        let values = self.wharf.as_ref().zip(self.direct.as_ref());
        self.ratio = values
            .filter(|(_, direct)| direct.value > 0.0)
            .map(|(wharf, direct)| wharf.value / direct.value);
        self
    }

    /// Adds a target. After the values: the verdict is decided at once.
    pub fn target(mut self, of: Of, bound: Bound, limit: f64) -> Self {
        let wharf = self.wharf.as_ref().map(|measured| measured.value);
        let direct = self.direct.as_ref().map(|measured| measured.value);
        let measured = match of {
            Of::Value => wharf,
            Of::Ratio => self.ratio,
            Of::Added => wharf.zip(direct).map(|(wharf, direct)| wharf - direct),
        };
        let measured = measured.filter(|value| value.is_finite());
        let met = measured.is_some_and(|value| match bound {
            Bound::AtMost => value <= limit,
            Bound::AtLeast => value >= limit,
        });
        self.targets.push(Target {
            of,
            bound,
            limit,
            measured,
            met,
        });
        self
    }

    pub fn at_most(self, of: Of, limit: f64) -> Self {
        self.target(of, Bound::AtMost, limit)
    }

    pub fn at_least(self, of: Of, limit: f64) -> Self {
        self.target(of, Bound::AtLeast, limit)
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

// === impl Target ===

impl Target {
    /// How much of the allowance is used: below 1 is met.
    pub fn used(&self) -> Option<f64> {
        let measured = self.measured?;
        let used = match self.bound {
            Bound::AtMost => measured / self.limit,
            Bound::AtLeast => self.limit / measured,
        };
        used.is_finite().then_some(used.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(wharf: f64, direct: f64) -> Figure {
        Figure::new('c', "x", "ms").value(wharf).direct_value(direct)
    }

    #[test]
    fn verdicts_of_value_ratio_and_difference() {
        let met = |figure: Figure| figure.targets[0].met;
        assert!(met(both(0.7, 0.6).at_most(Of::Added, 0.12)));
        assert!(!met(both(0.8, 0.6).at_most(Of::Added, 0.12)));
        assert!(met(both(95.0, 100.0).at_least(Of::Ratio, 0.95)));
        assert!(!met(both(11.0, 100.0).at_most(Of::Value, 10.0)));
        assert!(!met(Figure::failed('a', "why")));
        assert!(!met(Figure::new('a', "x", "ms")
            .samples(&Samples::default())
            .at_most(Of::Value, 1.0)));
    }
}
