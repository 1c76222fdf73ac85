//! `Runtime.evaluate` for the handful of expressions that tests need.
//!
//! Its own file because it is a tiny language: numbers, strings, sums and products of two numbers, `'x'.repeat(N)`
//! for replies of any size, and a few well-known names. Everything else is an exception, never a silent `undefined`.
//!
//! Invariant: what it answers, a real browser answers too.

use serde_json::{Value, json};

/// The `result` of `Runtime.evaluate` for a page at `url`.
pub fn evaluate(expression: &str, url: &str, user_agent: &str) -> Value {
    let expression = expression.trim().trim_end_matches(';').trim();
    let value = match expression {
        "location.href" | "document.URL" | "window.location.href" => Some(json!(url)),
        "document.title" => Some(json!("")),
        "navigator.userAgent" => Some(json!(user_agent)),
        "true" => Some(json!(true)),
        "false" => Some(json!(false)),
        _ => string(expression).or_else(|| arithmetic(expression)),
    };
    match value {
        Some(value) => json!({"result": remote_object(value)}),
        None if expression == "undefined" => json!({"result": {"type": "undefined"}}),
        None => exception(expression),
    }
}

fn remote_object(value: Value) -> Value {
    match &value {
        Value::String(_) => json!({"type": "string", "value": value}),
        Value::Bool(_) => json!({"type": "boolean", "value": value}),
        _ => json!({"type": "number", "value": value, "description": value.to_string()}),
    }
}

fn exception(expression: &str) -> Value {
    let text = format!("EvalError: fake-browser cannot evaluate {expression}");
    let object = json!({"type": "object", "subtype": "error", "className": "EvalError", "description": text});
    let details =
        json!({"exceptionId": 1, "text": "Uncaught", "lineNumber": 0, "columnNumber": 0, "exception": object});
    json!({"result": object, "exceptionDetails": details})
}

/// `'text'`, `"text"`, and either with `.repeat(N)`.
fn string(expression: &str) -> Option<Value> {
    let quote = expression.chars().next().filter(|c| matches!(c, '\'' | '"' | '`'))?;
    let (text, rest) = expression[1..].split_once(quote)?;
    if rest.is_empty() {
        return Some(json!(text));
    }
    let count: usize = rest.strip_prefix(".repeat(")?.strip_suffix(')')?.trim().parse().ok()?;
    Some(json!(text.repeat(count)))
}

fn arithmetic(expression: &str) -> Option<Value> {
    if let Ok(number) = expression.parse::<f64>() {
        return Some(number_value(number));
    }
    let at = expression.rfind(['+', '*']).filter(|at| *at > 0)?;
    let (left, right) = (&expression[..at], &expression[at + 1..]);
    let (left, right): (f64, f64) = (left.trim().parse().ok()?, right.trim().parse().ok()?);
    Some(number_value(if expression.as_bytes()[at] == b'+' {
        left + right
    } else {
        left * right
    }))
}

/// Whole numbers travel without a decimal point, as JavaScript prints them.
fn number_value(number: f64) -> Value {
    let text = number.to_string();
    text.parse::<i64>().map_or_else(|_| json!(number), |whole| json!(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(expression: &str) -> Value {
        evaluate(expression, "about:blank", "Fake")["result"]["value"].clone()
    }

    #[test]
    fn evaluate_simple_expressions_answer_as_javascript() {
        assert_eq!(value("1 + 1"), json!(2));
        assert_eq!(value("6*7;"), json!(42));
        assert_eq!(value("1.5"), json!(1.5));
        assert_eq!(value("'a b'"), json!("a b"));
        assert_eq!(value("'x'.repeat(4)"), json!("xxxx"));
        assert_eq!(value("location.href"), json!("about:blank"));
    }

    #[test]
    fn evaluate_unknown_expression_throws() {
        let reply = evaluate("window.open()", "about:blank", "Fake");
        assert_eq!(reply["exceptionDetails"]["text"], "Uncaught");
    }
}
