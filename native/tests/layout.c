/* layout: the sizes and offsets of the structs of sluice.h, which no later version changes. Compiled, not run. */
#include <sluice.h>

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " has another size")
#define AT(type, field, at) _Static_assert(offsetof(type, field) == (at), #type "." #field " is elsewhere")

SIZE(sluice_settings, 48);
AT(sluice_settings, controller, 8);
AT(sluice_settings, ca_file, 16);
AT(sluice_settings, token_file, 24);
AT(sluice_settings, cert_file, 32);
AT(sluice_settings, key_file, 40);

SIZE(sluice_phase, 64);
AT(sluice_phase, tolerance_ns, 8);
AT(sluice_phase, duration_ns, 16);
AT(sluice_phase, read_bytes_per_s, 24);
AT(sluice_phase, write_bytes_per_s, 32);
AT(sluice_phase, metadata_ops_per_s, 40);
AT(sluice_phase, reserved, 48);

SIZE(sluice_request, 120);
AT(sluice_request, read_bytes_per_s, 8);
AT(sluice_request, write_bytes_per_s, 16);
AT(sluice_request, metadata_ops_per_s, 24);
AT(sluice_request, duration_ns, 32);
AT(sluice_request, not_before_ns, 40);
AT(sluice_request, by_ns, 48);
AT(sluice_request, claim_window_ns, 56);
AT(sluice_request, after, 64);
AT(sluice_request, job, 72);
AT(sluice_request, path, 80);
AT(sluice_request, idempotency_key, 88);
AT(sluice_request, phases, 96);
AT(sluice_request, phase_count, 104);
AT(sluice_request, flags, 112);
AT(sluice_request, nodes, 116);

SIZE(sluice_details, 544);
AT(sluice_details, id, 8);
AT(sluice_details, state, 16);
AT(sluice_details, reduced_ppm, 20);
AT(sluice_details, start_ns, 24);
AT(sluice_details, end_ns, 32);
AT(sluice_details, guaranteed_ns, 40);
AT(sluice_details, claim_by_ns, 48);
AT(sluice_details, claimed_ns, 56);
AT(sluice_details, read_bytes_per_s, 64);
AT(sluice_details, write_bytes_per_s, 72);
AT(sluice_details, metadata_ops_per_s, 80);
AT(sluice_details, used_bytes, 88);
AT(sluice_details, credit_bytes, 96);
AT(sluice_details, phase_of, 104);
AT(sluice_details, next_phase, 112);
AT(sluice_details, next_phase_start_ns, 120);
AT(sluice_details, ended, 128);
AT(sluice_details, target, 160);
AT(sluice_details, reduced_because, 288);

SIZE(sluice_refusal, 696);
AT(sluice_refusal, next_start_ns, 8);
AT(sluice_refusal, fits_now_ppm, 16);
AT(sluice_refusal, kind, 24);
AT(sluice_refusal, bottleneck, 56);
AT(sluice_refusal, taken_by, 184);

SIZE(sluice_usage, 32);
AT(sluice_usage, read_bytes, 8);
AT(sluice_usage, written_bytes, 16);
AT(sluice_usage, delayed_ns, 24);

SIZE(sluice_credit, 32);
AT(sluice_credit, bytes, 8);
AT(sluice_credit, outstanding_bytes, 16);
AT(sluice_credit, outstanding, 24);

SIZE(sluice_state, sizeof(int));
SIZE(sluice_error, sizeof(int));
