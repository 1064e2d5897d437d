//! The replies that every call of an API may give, and numbers with their real bounds.
//!
//! ```text
//!   utoipa's description ─► replies that any call may give: 401, 403, 408, …  ─► /openapi.json
//!                        └► u32 and u64 with their greatest value
//! ```
//!
//! Handlers describe their own replies; those of the layers before them (rights, time and size
//! limits) are the same for all calls.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

/// A status and its meaning.
pub type AnyReplyBody = (u16, &'static str);

/// Adds to a description the replies `any` of each call and `with_body` of each call with a body,
/// unless the call describes them itself. Each has an [`ErrorReport`](crate::ErrorReport) as its
/// body.
pub fn described(description: OpenApi, any: &[AnyReplyBody], with_body: &[AnyReplyBody]) -> Value {
    let mut all = serde_json::to_value(description).expect("a description is plain data");
    for call in calls(&mut all) {
        let more = if call.contains_key("requestBody") { with_body } else { &[] };
        let answers = call.entry("responses").or_insert_with(|| json!({}));
        for (status, means) in any.iter().chain(more) {
            let answers = answers.as_object_mut().expect("answers are by status");
            answers.entry(status.to_string()).or_insert_with(|| refusal(means));
        }
    }
    bound(&mut all);
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

/// `int32` and `int64` are signed by definition; ours that begin at 0 are not.
fn bound(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(bound),
        Value::Object(fields) => {
            fields.values_mut().for_each(bound);
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
        responses((status = 413, description = "of its own")),
    )]
    #[allow(dead_code, reason = "only its description is wanted")]
    fn put() {}

    #[derive(utoipa::OpenApi)]
    #[openapi(paths(put))]
    struct Small;

    #[test]
    fn each_call_has_what_any_may_answer_and_keeps_its_own() {
        let all = described(Small::openapi(), &[(401, "who?")], &[(413, "much"), (415, "kind")]);
        let answers = &all["paths"]["/x"]["put"]["responses"];
        assert_eq!(answers["401"]["description"], "who?");
        assert_eq!(answers["413"]["description"], "of its own");
        let schema = &answers["415"]["content"]["application/json"]["schema"]["$ref"];
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
