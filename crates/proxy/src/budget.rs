//! Monthly byte budget of a link, and comparison of the bytes that the link has carried with the part of the budget
//! that it has earned so far.
//!
//! A tenth of the budget is available from the first second of the month, so that the link can be used on its first
//! day. The remaining budget is earned evenly until the end of the month:
//!
//! ```text
//! earned = budget (1/10 + 9/10 · elapsed / length)
//! ```
//!
//! A link that has carried more than it has earned is *ahead*: it is more expensive than all links that are not
//! ahead. A link that has carried its budget is *spent*: it is used only while no other link is available
//! ([`Standing::cost`]). A month begins at midnight UTC on the billing day, or on the last day of a month that has no
//! such day. Bytes are booked under the day on which their month began, so a clock that is temporarily wrong does not
//! change the bytes of other months. At most [`MAX_MONTHS`] months are stored.

use std::collections::BTreeMap;

use pleach_core::units::Bytes;
use time::{Date, Duration, UtcDateTime};

use crate::placer::cost::Cost;

/// A byte budget for both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Number of bytes that the link may carry in a month; above zero.
    pub bytes: Bytes,
    /// Day of the month on which the billing month begins, 1 to 31.
    pub billing_day: u8,
}

/// How a link's use compares with its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The link has carried no more than it has earned, or it has no budget.
    #[default]
    Within,
    /// The link has carried more than it has earned.
    Ahead,
    /// The link has carried its whole budget.
    Spent,
}

impl Standing {
    /// Returns the cost of using a link that is configured with `cost` and has this standing.
    #[must_use]
    pub fn cost(self, cost: Cost) -> Cost {
        match (self, cost) {
            (Self::Ahead, Cost::Rank(_)) => Cost::Thrift,
            (Self::Spent, Cost::Rank(_) | Cost::Thrift) => Cost::Standby,
            (Self::Within | Self::Ahead | Self::Spent, cost) => cost,
        }
    }
}

/// Use of a budget in the present month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetReport {
    /// Data volume that the link may carry.
    pub bytes: Bytes,
    /// Data volume that the link has carried.
    pub used: Bytes,
    /// Data volume that the link will have carried at the end of the month if it goes on as on average since the
    /// month began. `None` on the first day of the month.
    pub forecast: Option<Bytes>,
    /// Beginning of the next month, in seconds since 1970-01-01 UTC.
    pub renews_at_s: u64,
    /// Comparison of the used volume with the budget.
    pub standing: Standing,
}

/// Bytes that a link has carried, by month.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes by the day on which the month began, in days since 1970-01-01.
    months: BTreeMap<i32, u64>,
}

impl Account {
    /// Books `bytes` carried at `unix_s`, seconds since 1970-01-01 UTC.
    pub fn charge(&mut self, budget: &Budget, unix_s: u64, bytes: u64) {
        let present = month(budget, unix_s).0;
        let month = self.months.entry(present).or_default();
        *month = month.saturating_add(bytes);
        while self.months.len() > MAX_MONTHS {
            // If the present month is the oldest, a clock that was wrong has booked bytes into future months. Then
            // the latest of these is removed, not the present month.
            let is_oldest = self
                .months
                .first_key_value()
                .is_some_and(|(month, _)| *month == present);
            if is_oldest {
                self.months.pop_last();
            } else {
                self.months.pop_first();
            }
        }
    }

    /// Returns the bytes carried in the month that contains `unix_s`.
    #[must_use]
    pub fn used(&self, budget: &Budget, unix_s: u64) -> Bytes {
        let month = self.months.get(&month(budget, unix_s).0);
        Bytes::new(month.copied().unwrap_or(0))
    }

    /// Returns how the link's use compares with its budget at `unix_s`.
    #[must_use]
    pub fn standing(&self, budget: &Budget, unix_s: u64) -> Standing {
        let used = self.used(budget, unix_s);
        if used >= budget.bytes {
            return Standing::Spent;
        }
        let Progress {
            elapsed_s,
            length_s,
            ..
        } = progress(budget, unix_s);
        let whole = u128::from(budget.bytes.get());
        let earned = whole / 10 + whole * 9 * u128::from(elapsed_s) / u128::from(length_s) / 10;
        if u128::from(used.get()) > earned {
            Standing::Ahead
        } else {
            Standing::Within
        }
    }

    /// Returns the use of the budget at `unix_s`.
    #[must_use]
    pub fn report(&self, budget: &Budget, unix_s: u64) -> BudgetReport {
        let used = self.used(budget, unix_s);
        let progress = progress(budget, unix_s);
        let forecast = (progress.elapsed_s >= DAY_S).then(|| {
            let whole = u128::from(used.get()) * u128::from(progress.length_s);
            let bytes = whole / u128::from(progress.elapsed_s);
            Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
        });
        BudgetReport {
            bytes: budget.bytes,
            used,
            forecast,
            renews_at_s: progress.begin_s + progress.length_s,
            standing: self.standing(budget, unix_s),
        }
    }

    /// Returns all booked months, to be stored: the day on which each month began, in days since 1970-01-01, and its
    /// bytes.
    pub fn months(&self) -> impl Iterator<Item = (i32, u64)> {
        self.months.iter().map(|(first, bytes)| (*first, *bytes))
    }

    /// Adds the months that [`Self::months`] returned in an earlier run.
    pub fn restore(&mut self, months: impl IntoIterator<Item = (i32, u64)>) {
        for (first, bytes) in months {
            let month = self.months.entry(first).or_default();
            *month = month.saturating_add(bytes);
        }
        while self.months.len() > MAX_MONTHS {
            self.months.pop_first();
        }
    }
}

/// A month, and the part of it that has elapsed.
struct Progress {
    begin_s: u64,
    length_s: u64,
    elapsed_s: u64,
}

fn progress(budget: &Budget, unix_s: u64) -> Progress {
    let (first, next) = month(budget, unix_s);
    let begin_s = u64::try_from(first).unwrap_or(0) * DAY_S;
    let length_s = u64::try_from(next - first).unwrap_or(1).max(1) * DAY_S;
    Progress {
        begin_s,
        length_s,
        elapsed_s: unix_s.saturating_sub(begin_s).min(length_s),
    }
}

/// Returns the days on which the month of `unix_s` and the month after it begin, in days since 1970-01-01.
fn month(budget: &Budget, unix_s: u64) -> (i32, i32) {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let today = UtcDateTime::from_unix_timestamp(seconds).map_or(Date::MAX, UtcDateTime::date);
    let this = billing_date(today, budget.billing_day);
    let (first, next) = if today < this {
        let before = first_of_month(today).saturating_sub(Duration::DAY);
        (billing_date(before, budget.billing_day), this)
    } else {
        let last = today.replace_day(today.month().length(today.year()));
        let after = last.unwrap_or(today).saturating_add(Duration::DAY);
        (this, billing_date(after, budget.billing_day))
    };
    let days = |date: Date| date.to_julian_day() - UtcDateTime::UNIX_EPOCH.to_julian_day();
    (days(first), days(next))
}

/// Returns the billing day in the calendar month of `date`.
fn billing_date(date: Date, billing_day: u8) -> Date {
    let day = billing_day.clamp(1, date.month().length(date.year()));
    date.replace_day(day).unwrap_or(date)
}

fn first_of_month(date: Date) -> Date {
    date.replace_day(1).unwrap_or(date)
}

const DAY_S: u64 = 86_400;
/// Number of months stored: one year and the current month.
pub const MAX_MONTHS: usize = 13;

#[cfg(test)]
mod tests {
    use time::Month;

    use super::*;

    fn at(year: i32, month: Month, day: u8, hour: u8) -> u64 {
        let date = Date::from_calendar_date(year, month, day).expect("a day");
        let time = date.with_hms(hour, 0, 0).expect("an hour").as_utc();
        u64::try_from(time.unix_timestamp()).expect("after 1970")
    }

    const fn budget(megabytes: u64, billing_day: u8) -> Budget {
        Budget {
            bytes: Bytes::new(megabytes * 1_000_000),
            billing_day,
        }
    }

    #[test]
    fn a_month_ends_and_the_next_begins_with_nothing_used() {
        let budget = budget(1000, 5);
        let mut account = Account::default();
        account.charge(&budget, at(2026, Month::March, 5, 0), 400_000_000);
        account.charge(&budget, at(2026, Month::April, 4, 23), 600_000_000);
        let last = at(2026, Month::April, 4, 23);
        assert_eq!(account.used(&budget, last), Bytes::new(1_000_000_000));
        assert_eq!(account.standing(&budget, last), Standing::Spent);
        let next = at(2026, Month::April, 5, 0);
        assert_eq!(account.used(&budget, next), Bytes::ZERO);
        assert_eq!(account.standing(&budget, next), Standing::Within);
        // A clock that temporarily shows 1970 neither forgets the month nor adds to it.
        account.charge(&budget, 60, 7);
        assert_eq!(account.used(&budget, last), Bytes::new(1_000_000_000));
        assert_eq!(account.used(&budget, next), Bytes::ZERO);
    }

    #[test]
    fn what_is_earned_grows_from_a_tenth_to_all() {
        let budget = budget(1000, 1);
        let mut account = Account::default();
        let begin = at(2026, Month::June, 1, 0);
        account.charge(&budget, begin, 100_000_000);
        assert_eq!(account.standing(&budget, begin), Standing::Within);
        account.charge(&budget, begin, 1);
        assert_eq!(account.standing(&budget, begin), Standing::Ahead);
        // A day earns 30 MB.
        let later = at(2026, Month::June, 2, 0);
        assert_eq!(account.standing(&budget, later), Standing::Within);
        account.charge(&budget, later, 899_999_998);
        assert_eq!(account.standing(&budget, later), Standing::Ahead);
        let end = at(2026, Month::June, 30, 23);
        account.charge(&budget, end, 1);
        assert_eq!(account.standing(&budget, end), Standing::Spent);
    }

    #[test]
    fn the_forecast_continues_the_average_of_the_month() {
        let budget = budget(1000, 1);
        let mut account = Account::default();
        let begin = at(2026, Month::June, 1, 0);
        account.charge(&budget, begin, 100_000_000);
        let forecast = |at| account.report(&budget, at).forecast;
        assert_eq!(forecast(begin), None);
        assert_eq!(forecast(begin + DAY_S - 1), None);
        assert_eq!(
            forecast(at(2026, Month::June, 11, 0)),
            Some(Bytes::new(300_000_000))
        );
        let renews = account.report(&budget, begin).renews_at_s;
        assert_eq!(renews, at(2026, Month::July, 1, 0));
    }

    #[test]
    fn short_months_begin_on_their_last_day() {
        let budget = budget(1, 31);
        let begins = |year, name: Month, day| {
            let (first, next) = month(&budget, at(year, name, day, 12));
            let date = |days: i32| {
                let epoch = UtcDateTime::UNIX_EPOCH.to_julian_day();
                Date::from_julian_day(days + epoch).expect("a day")
            };
            let text = |date: Date| format!("{date}");
            (text(date(first)), text(date(next)))
        };
        for (year, name, day, first, next) in [
            (2026, Month::February, 27, "2026-01-31", "2026-02-28"),
            (2026, Month::February, 28, "2026-02-28", "2026-03-31"),
            (2028, Month::February, 29, "2028-02-29", "2028-03-31"),
            (2026, Month::January, 1, "2025-12-31", "2026-01-31"),
            (2026, Month::December, 31, "2026-12-31", "2027-01-31"),
        ] {
            assert_eq!(begins(year, name, day), (first.to_owned(), next.to_owned()));
        }
    }

    /// Compares with an obviously correct computation, day by day from 1970 on.
    #[test]
    fn months_follow_one_another_without_gap() {
        for billing_day in [1, 15, 29, 31] {
            let budget = budget(1, billing_day);
            let (mut first, mut next) = month(&budget, 0);
            for day in 0..20_000_i32 {
                let seconds = u64::try_from(day).expect("positive") * DAY_S;
                if day == next {
                    let new = month(&budget, seconds);
                    assert_eq!(new.0, next, "begins where the last one ended");
                    assert!((28..=31).contains(&(new.1 - new.0)), "{new:?}");
                    (first, next) = new;
                }
                assert_eq!(month(&budget, seconds), (first, next), "day {day}");
                assert_eq!(month(&budget, seconds + DAY_S - 1), (first, next));
            }
        }
    }

    #[test]
    fn months_are_kept_and_bounded() {
        let budget = budget(1000, 1);
        let mut account = Account::default();
        for month in 0..40 {
            account.charge(&budget, month * 31 * DAY_S, 1);
        }
        assert_eq!(account.months().count(), MAX_MONTHS);
        let mut again = Account::default();
        again.restore(account.months());
        assert_eq!(again, account);
    }

    #[test]
    fn standing_makes_links_dearer_but_never_cheaper() {
        use Standing::{Ahead, Spent, Within};
        assert_eq!(Within.cost(Cost::Rank(3)), Cost::Rank(3));
        assert_eq!(Ahead.cost(Cost::Rank(3)), Cost::Thrift);
        assert_eq!(Spent.cost(Cost::Rank(3)), Cost::Standby);
        for standing in [Within, Ahead, Spent] {
            assert_eq!(standing.cost(Cost::Never), Cost::Never);
            assert_eq!(standing.cost(Cost::Standby), Cost::Standby);
        }
        assert!(Cost::Rank(u8::MAX) < Cost::Thrift && Cost::Thrift < Cost::Standby);
    }

    #[test]
    fn any_clock_is_borne() {
        let budget = budget(1, 31);
        let mut account = Account::default();
        account.charge(&budget, u64::MAX, u64::MAX);
        account.charge(&budget, u64::MAX, u64::MAX);
        assert_eq!(account.standing(&budget, u64::MAX), Standing::Spent);
        assert!(account.report(&budget, u64::MAX).forecast.is_some());
    }
}
