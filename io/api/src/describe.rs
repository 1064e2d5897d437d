//! The replies that every call of an API may give, and numbers with their real bounds.
//!
//! ```text
//!   utoipa's description ─► replies that any call may give: 401, 403, 408, …  ─► /openapi.json
//!                        └► u32 and u64 with their greatest value
//! ```
//!
//! Handlers list their own codes; those of the layers before them (rights, time and size
//! limits) are the same for all calls.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use crate::ErrorCode;

/// Adds to a description the error replies of each call: those with the codes that the call itself
/// lists in [`CODES`], the codes `any` of all calls, and the codes `with_body` of each call with a
/// body. The list of a call then has all of its codes. The body of each reply is an
/// [`ErrorReport`](crate::ErrorReport).
pub fn described(description: OpenApi, any: &[ErrorCode], with_body: &[ErrorCode]) -> Value {
    let mut all = serde_json::to_value(description).expect("a description is plain data");
    for call in calls(&mut all) {
        let own = call.remove(CODES).map(serde_json::from_value::<Vec<ErrorCode>>);
        let own = own.transpose().expect("a call lists codes by name").unwrap_or_default();
        let more = if call.contains_key("requestBody") { with_body } else { &[] };
        let codes: BTreeSet<_> = own.iter().chain(any).chain(more).copied().collect();
        let mut replies: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for code in &codes {
            let text = format!("`{code}`: {}", code.meaning());
            replies.entry(code.status()).or_default().push(text);
        }
        let answers = call.entry("responses").or_insert_with(|| json!({}));
        let answers = answers.as_object_mut().expect("answers are by status");
        for (status, texts) in replies {
            answers.insert(status.to_string(), refusal(&texts.join(" ")));
        }
        call.insert(CODES.into(), json!(codes));
    }
    set_minimums(&mut all);
    all
}

/// Returns the query parameters of a described call.
pub fn query_names(call: &Value) -> Vec<String> {
    let parameters = call["parameters"].as_array().into_iter().flatten();
    let named = parameters.filter(|parameter| parameter["in"] == "query");
    named.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect()
}

fn calls(all: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let paths = all["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    let methods = paths.filter_map(Value::as_object_mut).flat_map(|path| path.values_mut());
    methods.filter_map(Value::as_object_mut)
}

fn refusal(means: &str) -> Value {
    let body = json!({ "schema": { "$ref": "#/components/schemas/ErrorReport" } });
    json!({ "description": means, "content": { "application/json": body } })
}

/// The extension of a described call with its error codes.
const CODES: &str = "x-error-codes";

/// `int32` and `int64` are signed by definition; ours that begin at 0 are not.
fn set_minimums(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(set_minimums),
        Value::Object(fields) => {
            fields.values_mut().for_each(set_minimums);
            let greatest = match fields.get("format").and_then(Value::as_str) {
                Some("int32") => u64::from(u32::MAX),
                Some("int64") => u64::MAX,
                _ => return,
            };
            if fields.get("minimum").and_then(Value::as_f64) == Some(0.0) {
                fields.remove("format");
                fields.insert("minimum".into(), json!(0));
                fields.insert("maximum".into(), json!(greatest));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use utoipa::OpenApi as _;

    use super::*;

    #[utoipa::path(
        put,
        path = "/x",
        params(("user" = Option<u32>, Query), ("name" = String, Header)),
        request_body = String,
        responses((status = 200, description = "done")),
        extensions(("x-error-codes" = json!(["no_rule_file"]))),
    )]
    #[allow(dead_code, reason = "only its description is wanted")]
    fn put() {}

    #[derive(utoipa::OpenApi)]
    #[openapi(paths(put))]
    struct Small;

    #[test]
    fn each_call_has_the_replies_of_its_own_codes_and_of_those_of_any() {
        let any = [ErrorCode::Unauthenticated];
        let with_body = [ErrorCode::InvalidMessage, ErrorCode::TooLarge];
        let all = described(Small::openapi(), &any, &with_body);
        let put = &all["paths"]["/x"]["put"];
        let codes = ["unauthenticated", "too_large", "invalid_message", "no_rule_file"];
        assert_eq!(put["x-error-codes"], json!(codes));
        let replies = &put["responses"];
        assert_eq!(replies.as_object().unwrap().len(), 4, "{replies}");
        assert_eq!(replies["200"]["description"], "done");
        let both = replies["422"]["description"].as_str().unwrap();
        assert!(both.starts_with("`invalid_message`: ") && both.contains(" `no_rule_file`: "));
        let schema = &replies["401"]["content"]["application/json"]["schema"]["$ref"];
        assert_eq!(schema, "#/components/schemas/ErrorReport");
    }

    #[test]
    fn numbers_end_where_they_do_and_names_are_those_behind_the_mark() {
        let all = described(Small::openapi(), &[], &[]);
        let put = &all["paths"]["/x"]["put"];
        assert_eq!(put["parameters"][0]["schema"]["maximum"], u32::MAX);
        assert_eq!(put["parameters"][0]["schema"]["minimum"], 0);
        assert_eq!(query_names(put), ["user"]);
    }
}
