//! Descriptions of records of the core for the API's description: the core knows no API.

use std::collections::BTreeMap;

use model::Accesses;
use utoipa::ToSchema;

/// `model::Service` in JSON: cumulative amounts and operations.
#[derive(ToSchema)]
#[schema(as = Service)]
#[allow(dead_code, reason = "it describes a type of the core")]
pub(crate) struct ServiceSchema {
    /// Payload bytes that were read.
    read_bytes: u64,
    /// Payload bytes that were written.
    written_bytes: u64,
    /// The cost of the requests to their targets.
    cost_ns: u64,
    /// Requests that a limit or a cap on slots delayed.
    delayed: u64,
    /// The time that these waited, summed up.
    delayed_ns: u64,
    /// The payload bytes of the delayed reads and writes.
    delayed_bytes: u64,
    /// The time in which a job had requests, with the pauses between them of less than a second.
    /// It is counted once for each job at each proxy; other sums add these up.
    active_ns: u64,
    /// The part of `active_ns` in which a limit or a cap on slots delayed at least one request.
    delayed_span_ns: u64,
    /// Operations by kind; kinds that are absent have none.
    ops: BTreeMap<String, u64>,
    /// The sizes and order of the reads.
    reads: AccessesSchema,
    /// The sizes and order of the writes.
    writes: AccessesSchema,
}

/// `model::Accesses` in JSON: sizes and order of reads or writes.
#[derive(ToSchema)]
#[schema(as = Accesses)]
#[allow(dead_code, reason = "it describes a type of the core")]
pub(crate) struct AccessesSchema {
    /// The number that moved less than 4 KiB, less than 64 KiB, less than 1 MiB, and more.
    sizes: [u64; Accesses::SIZES],
    /// The number that did not begin where a recent one through the same open file ended.
    random: u64,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::Service;
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn the_description_has_the_fields_of_the_records() {
        let described = |schema: serde_json::Value| -> BTreeSet<String> {
            let properties = schema["properties"].as_object().expect("an object").keys();
            properties.cloned().collect()
        };
        let written = |value: serde_json::Value| -> BTreeSet<String> {
            value.as_object().expect("an object").keys().cloned().collect()
        };
        let service = serde_json::to_value(ServiceSchema::schema()).unwrap();
        assert_eq!(described(service), written(serde_json::to_value(Service::default()).unwrap()));
        let accesses = serde_json::to_value(AccessesSchema::schema()).unwrap();
        assert_eq!(
            described(accesses),
            written(serde_json::to_value(Accesses::default()).unwrap())
        );
    }
}
