//! Text as Slack wants it, in its Web API and in its webhooks.
//!
//! Invariants: a text between [`FENCE`]s cannot end its block early; [`size`] is never less than the characters of [`escaped`].

/// What stands before and after a block of code.
pub const FENCE: &str = "```";

/// A text with Slack's three special characters escaped, and with a space of no width in each row of three backticks.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut ticks = 0;
    for c in text.chars() {
        ticks = if c == '`' { ticks + 1 } else { 0 };
        if ticks == FENCE.len() {
            out.push('\u{200b}');
            ticks = 1;
        }
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // It would be lost on the way.
            '\0' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A block of code. The text ends in a line of its own, so that a backtick at its end is no part of the fence.
pub fn block(text: &str) -> String {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{FENCE}{}{end}{FENCE}", escaped(text))
}

/// Characters of a text as [`escaped`] writes it, at the most: Slack does not say which units it counts, so a character beyond
/// the basic plane is two.
pub fn size(text: &str) -> usize {
    text.chars()
        .map(|c| match c {
            '&' => 5,
            '<' | '>' => 4,
            '`' => 2,
            c => c.len_utf16(),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_block_is_taken_for_its_end_or_for_markup() {
        assert_eq!(escaped("a < b && <!channel>"), "a &lt; b &amp;&amp; &lt;!channel&gt;");
        for text in ["```", "``````", "a``", "`", "x```y", "\0"] {
            let block = block(text);
            assert_eq!(block.matches(FENCE).count(), 2, "{block}");
            assert!(block.ends_with("\n```"));
            assert!(escaped(text).encode_utf16().count() <= size(text), "{text}");
        }
    }
}
