//! [`format`]: the expressions of the formats that JSON Schema defines.
//!
//! Each matches only texts that are valid, and not always all of them: comments say what is left out.

/// A format of JSON Schema.
pub(super) enum Format {
    /// Texts that match all of these expressions.
    Enforced(Vec<String>),
    /// Defined by JSON Schema, and not a regular language that is known here.
    NotEnforced,
    /// Not defined by JSON Schema: an annotation.
    Unknown,
}

/// The formats that are enforced.
pub(super) const ENFORCED: [&str; 14] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "json-pointer",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];
/// The formats that are refused.
pub(super) const REFUSED: [&str; 5] = ["idn-email", "idn-hostname", "iri", "iri-reference", "regex"];

/// A format by its name.
pub(super) fn format(name: &str) -> Format {
    let one = |regex: String| Format::Enforced(vec![regex]);
    match name {
        "date" => one(date()),
        "time" => one(time()),
        "date-time" => one(format!("(?:{})[Tt](?:{})", date(), time())),
        "duration" => one(duration()),
        "email" => Format::Enforced(vec![
            format!("{0}(\\.{0})*@.*", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"),
            format!("[^@]*@({NAME}|\\[{}\\])", ipv4()),
            "[^@]{1,64}@.{1,255}".into(),
        ]),
        "hostname" => {
            Format::Enforced(vec![NAME.into(), r"[^.]{1,63}(\.[^.]{1,63})*".into(), r".{1,253}".into()])
        }
        "ipv4" => one(ipv4()),
        "ipv6" => one(ipv6()),
        "uuid" => one("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}".into()),
        "json-pointer" => one(POINTER.into()),
        "relative-json-pointer" => one(format!("(0|[1-9][0-9]*)(#|{POINTER})")),
        "uri" => one(format!("[A-Za-z][A-Za-z0-9+.-]*:{}", after_scheme(false))),
        "uri-reference" => one(format!("([A-Za-z][A-Za-z0-9+.-]*:)?{}", after_scheme(true))),
        "uri-template" => one(uri_template()),
        name if REFUSED.contains(&name) => Format::NotEnforced,
        _ => Format::Unknown,
    }
}

const POINTER: &str = r"(/([^~/]|~[01])*)*";
/// Labels of a host name; none with two hyphens in a row, among which are invalid punycode ones.
const NAME: &str = r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)*";

/// Days that exist: the 29th of February in leap years alone.
fn date() -> String {
    let fours = "([02468][048]|[13579][26])";
    let leap = format!("([0-9]{{2}}(0[48]|[2468][048]|[13579][26])|{fours}00)");
    let long = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])";
    let short = "(0[469]|11)-(0[1-9]|[12][0-9]|30)";
    format!("([0-9]{{4}}-({long}|{short}|02-(0[1-9]|1[0-9]|2[0-8]))|{leap}-02-29)")
}

/// Leap seconds at 23:59:60 in UTC alone.
fn time() -> String {
    let zone = "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    let clock = format!(r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?{zone}");
    format!(r"({clock}|23:59:60(\.[0-9]+)?([Zz]|[+-]00:00))")
}

fn duration() -> String {
    let day = "[0-9]+D";
    let month = format!("[0-9]+M({day})?");
    let year = format!("[0-9]+Y({month})?");
    let second = "[0-9]+S";
    let minute = format!("[0-9]+M({second})?");
    let hour = format!("[0-9]+H({minute})?");
    let time = format!("T({hour}|{minute}|{second})");
    format!("P(({year}|{month}|{day})({time})?|{time}|[0-9]+W)")
}

fn ipv4() -> String {
    let byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    format!(r"{byte}(\.{byte}){{3}}")
}

/// Eight groups, or fewer around `::`, the last two of which may be an IPv4 address.
fn ipv6() -> String {
    let group = "[0-9A-Fa-f]{1,4}";
    let mut options = vec![format!("({group}:){{7}}{group}"), format!("({group}:){{6}}{}", ipv4())];
    for before in 0..8 {
        // `::` stands for one group at least.
        let head = match before {
            0 => String::new(),
            1 => group.into(),
            n => format!("{group}(:{group}){{{}}}", n - 1),
        };
        let after = 7 - before;
        let tail = match after {
            0 => String::new(),
            1 => format!("({group})?"),
            n => format!("({group}(:{group}){{0,{}}})?", n - 1),
        };
        options.push(format!("{head}::{tail}"));
        if after >= 2 {
            let groups = after - 2;
            options.push(format!("{head}::({group}:){{0,{groups}}}{}", ipv4()));
        }
    }
    format!("({})", options.join("|"))
}

/// The rest of a URI behind its scheme: authority, path, query and fragment (RFC 3986). Relative, the first segment
/// has no colon.
fn after_scheme(relative: bool) -> String {
    let hex = "%[0-9A-Fa-f]{2}";
    let plain = r"A-Za-z0-9._~!$&'()*+,;=\-";
    let (segment, no_colon) = (format!("([{plain}:@]|{hex})"), format!("([{plain}@]|{hex})"));
    let future = format!(r"[vV][0-9A-Fa-f]+\.[{plain}:]+");
    let host = format!(r"(\[({}|{future})\]|([{plain}]|{hex})*)", ipv6());
    let authority = format!("(([{plain}:]|{hex})*@)?{host}(:[0-9]*)?");
    let slashes = format!("(/{segment}*)*");
    let first = if relative { no_colon } else { segment.clone() };
    let path = format!("(//{authority}{slashes}|/({segment}+{slashes})?|({first}+{slashes})?)");
    let tail = format!("([{plain}:@/?]|{hex})*");
    format!(r"{path}(\?{tail})?(#{tail})?")
}

/// Literals and expressions (RFC 6570).
fn uri_template() -> String {
    let hex = "%[0-9A-Fa-f]{2}";
    let letter = format!("([A-Za-z0-9_]|{hex})");
    let name = format!(r"{letter}(\.?{letter})*");
    let variable = format!(r"{name}(:[1-9][0-9]{{0,3}}|\*)?");
    let expression = format!(r"\{{[+#./;?&=,!@|]?{variable}(,{variable})*\}}");
    format!(r#"([^\x00-\x20"'%<>\\^`{{|}}\x7f]|{hex}|{expression})*"#)
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexAst;

    use super::*;
    use crate::rules::matches;

    fn valid(name: &str, text: &str) -> bool {
        let Format::Enforced(all) = format(name) else { panic!("{name}") };
        all.iter().all(|regex| matches(&RegexAst::Regex(format!("(?s:{regex})")), text).unwrap())
    }

    #[test]
    fn formats_match_what_is_valid() {
        for (name, text, expected) in [
            ("date", "2024-02-29", true),
            ("date", "2023-02-29", false),
            ("date", "1900-02-29", false),
            ("date", "2000-02-29", true),
            ("date", "2023-04-31", false),
            ("date", "2023-12-31", true),
            ("time", "23:59:60Z", true),
            ("time", "22:59:60Z", false),
            ("time", "08:30:06.283185+01:30", true),
            ("time", "08:30:06", false),
            ("date-time", "1963-06-19T08:30:06.283185Z", true),
            ("date-time", "1990-02-31T15:59:59.123-08:00", false),
            ("duration", "P4DT12H30M5S", true),
            ("duration", "P1Y2W", false),
            ("duration", "PT", false),
            ("email", "joe.bloggs@example.com", true),
            ("email", ".test@example.com", false),
            ("email", "te..st@example.com", false),
            ("email", "joe@[127.0.0.1]", true),
            ("email", "joe@bad!", false),
            ("hostname", "www.example.com", true),
            ("hostname", "-a.com", false),
            ("hostname", "a-.com", false),
            ("hostname", &"a".repeat(64), false),
            ("hostname", &"a".repeat(63), true),
            ("hostname", "xn--X", false),
            ("ipv4", "192.168.0.1", true),
            ("ipv4", "256.0.0.1", false),
            ("ipv4", "01.0.0.1", false),
            ("ipv6", "::1", true),
            ("ipv6", "::", true),
            ("ipv6", "1:2:3:4:5:6:7:8", true),
            ("ipv6", "1:2:3:4:5:6:7::", true),
            ("ipv6", "1:2:3:4:5:6:7:8::", false),
            ("ipv6", "::1:2:3:4:5:6:7:8", false),
            ("ipv6", "::ffff:192.168.0.1", true),
            ("ipv6", "1:2:3:4:5:6:1.2.3.4", true),
            ("ipv6", "1::2::3", false),
            ("ipv6", "12345::", false),
            ("uuid", "2EB8AA08-AA98-11EA-B4AA-73B441D16380", true),
            ("uuid", "2eb8aa08aa9811eab4aa73b441d16380", false),
            ("json-pointer", "/foo/bar~0/baz~1/%a", true),
            ("json-pointer", "/foo/bar~", false),
            ("relative-json-pointer", "0/foo", true),
            ("relative-json-pointer", "01/a", false),
            ("uri", "http://foo.bar/?q=Test%20URL-encoded%20stuff", true),
            ("uri", "//foo.bar/?baz", false),
            ("uri", "http://foo.bar:port/", false),
            ("uri", "https://[@example.org/test.txt", false),
            ("uri", "ldap://[2001:db8::7]/c=GB?objectClass?one", true),
            ("uri", "mailto:John.Doe@example.com", true),
            ("uri", "http:// shouldfail.com", false),
            ("uri-reference", "/abc", true),
            ("uri-reference", "a:b", true),
            ("uri-reference", "1:b", false),
            ("uri-reference", r"\\WINDOWS\fileshare", false),
            ("uri-template", "http://example.com/dictionary/{term:1}/{term}", true),
            ("uri-template", "http://example.com/dictionary/{term:1}/{term", false),
        ] {
            assert_eq!(valid(name, text), expected, "{name} {text}");
        }
    }

    #[test]
    fn the_lists_are_complete() {
        assert!(ENFORCED.iter().all(|name| matches!(format(name), Format::Enforced(_))));
        assert!(REFUSED.iter().all(|name| matches!(format(name), Format::NotEnforced)));
        assert!(matches!(format("int32"), Format::Unknown));
    }
}
