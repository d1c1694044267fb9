//! Moments as calendar dates, always in UTC, and the time that stands in a job id.

/// A moment by the calendar, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// The year, from 1970.
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59.
    pub second: u64,
    /// 0 to 999.
    pub millisecond: u64,
}

impl Date {
    /// From milliseconds since 1970 (UTC).
    pub fn from_ms(ms: u64) -> Self {
        let (days, within) = (ms / 86_400_000, ms % 86_400_000);
        // Days are counted from 1 March 0000, so that the leap day ends a year; eras are of 400 years.
        let day = days + 719_468;
        let (era, day) = (day / 146_097, day % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let shifted = (5 * day + 2) / 153;
        let day = day - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let (seconds, millisecond) = (within / 1_000, within % 1_000);
        Self {
            year: era * 400 + year + u64::from(month <= 2),
            month,
            day,
            hour: seconds / 3_600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            millisecond,
        }
    }

    /// As Python writes a date-time: `2026-12-01 03:31:39.637000`.
    pub fn python(&self) -> String {
        self.with_separator(' ')
    }

    /// As RFC 3339 and ISO 8601 have it: `2026-12-01T03:31:39.637000Z`.
    pub fn rfc3339(&self) -> String {
        self.with_separator('T') + "Z"
    }

    fn with_separator(&self, separator: char) -> String {
        let Self { year, month, day, hour, minute, second, millisecond } = self;
        format!(
            "{year:04}-{month:02}-{day:02}{separator}{hour:02}:{minute:02}:{second:02}.{millisecond:03}000"
        )
    }
}

/// The moment in a job id, in milliseconds since 1970 (UTC); none if it does not begin with one. Salt's job ids begin
/// with `YYYYMMDDHHMMSSffffff`.
pub fn jid_ms(jid: &str) -> Option<u64> {
    let digits = jid.get(..20).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
    let part = |from: usize, to: usize| digits[from..to].parse::<u64>().ok();
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, second) = (part(8, 10)?, part(10, 12)?, part(12, 14)?);
    let valid = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * shifted_year + shifted_year / 4 - shifted_year / 100
        + shifted_year / 400
        + (153 * shifted_month + 2) / 5
        + (day - 1);
    let days = days.checked_sub(719_468)?;
    Some(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1_000 + part(14, 20)? / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_as_python_and_rfc_3339_write_it() {
        let python = |ms| Date::from_ms(ms).python();
        assert_eq!(python(0), "1970-01-01 00:00:00.000000");
        assert_eq!(python(951_782_399_999), "2000-02-28 23:59:59.999000");
        assert_eq!(python(951_782_400_000), "2000-02-29 00:00:00.000000");
        assert_eq!(python(4_102_444_799_000), "2099-12-31 23:59:59.000000");
        assert_eq!(Date::from_ms(1_796_096_499_637).rfc3339(), "2026-12-01T03:41:39.637000Z");
    }

    #[test]
    fn the_time_in_a_job_id_is_read_and_nothing_else() {
        for ms in [0, 951_782_399_999, 951_782_400_000, 1_796_096_499_637, 4_102_444_799_000] {
            let date = Date::from_ms(ms).python();
            let jid: String = date.chars().filter(char::is_ascii_digit).collect();
            assert_eq!(jid_ms(&jid), Some(ms));
            assert_eq!(jid_ms(&format!("{jid}_1234")), Some(ms));
        }
        for not in ["", "req", "2026", "20261301000000000000", "abcdefghijklmnopqrst", "20260101250000000000"]
        {
            assert_eq!(jid_ms(not), None, "{not}");
        }
    }
}
