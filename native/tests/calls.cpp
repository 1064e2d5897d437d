// calls: the calls of sluice.hpp against a controller with one target, of which 42.5 MB/s can be reserved.
#include <cstdlib>
#include <iostream>

#include <sluice.hpp>

static void check(bool holds, const char *what) {
    if (holds) return;
    std::cerr << "not so: " << what << "\n";
    std::exit(1);
}

int main() {
    using std::chrono::seconds;
    sluice::Client client;
    std::uint64_t id = client.addReservationAsync(sluice::Request(1000000, seconds(60)), seconds(120));
    check(client.testReservation(id) != sluice::State::Undefined, "it is scheduled or active");
    check(client.waitReservation(id, seconds(120)) == sluice::State::Active, "it becomes active");
    check(client.removeReservation(id), "it is removed");
    check(!client.removeReservation(id), "it is removed once");
    std::uint64_t left;
    {
        sluice::Reservation kept = client.addReservationSync(sluice::Request(1000000, seconds(60)), seconds(120));
        sluice::Reservation moved = std::move(kept);
        left = moved.id();
    }
    check(client.testReservation(left) == sluice::State::Undefined, "it is removed at the end of its scope");
    sluice_phase phase = SLUICE_PHASE_INIT;
    phase.duration_ns = 60 * SLUICE_SECOND;
    phase.tolerance_ns = 60 * SLUICE_SECOND;
    phase.write_bytes_per_s = 2000000;
    {
        sluice::Reservation basic = client.addReservationSync(sluice::Request(1000000, seconds(600)), seconds(120));
        std::uint64_t begun = client.beginPhase(basic.id(), phase);
        check(client.details(begun).phase_of == basic.id(), "the phase is one of it");
        check(client.endPhase(begun), "the phase ends");
        client.extendReservation(basic.id(), seconds(1));
        basic.finish();
    }
    check(client.credit().outstanding == 0, "nothing is left");
    try {
        client.addReservationAsync(sluice::Request(43000000, seconds(60)));
        check(false, "too much is refused");
    } catch (const sluice::Error &error) {
        check(error.code() == SLUICE_ERROR_DOES_NOT_FIT, "the code says so");
        check(std::string(error.refusal().bottleneck) == "fs", "the target is named");
    }
    std::cout << "ok\n";
}
