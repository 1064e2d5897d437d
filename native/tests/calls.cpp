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
    const seconds limit(120);  // of a slow machine
    sluice::Client client;
    std::uint64_t id = client.addReservationAsync(sluice::Request(1000000, seconds(60)), limit);
    check(client.testReservation(id, limit) != sluice::State::Undefined, "it is scheduled or active");
    check(client.waitReservation(id, limit) == sluice::State::Active, "it becomes active");
    check(client.removeReservation(id, limit), "it is removed");
    check(!client.removeReservation(id, limit), "it is removed once");
    std::uint64_t left;
    {
        sluice::Reservation kept = client.addReservationSync(sluice::Request(1000000, seconds(60)), limit);
        sluice::Reservation moved = std::move(kept);
        left = moved.id();
    }
    check(client.testReservation(left, limit) == sluice::State::Undefined, "it is removed at the end of its scope");
    sluice_phase phase = SLUICE_PHASE_INIT;
    phase.duration_ns = 60 * SLUICE_SECOND;
    phase.tolerance_ns = 60 * SLUICE_SECOND;
    phase.write_bytes_per_s = 2000000;
    {
        sluice::Reservation basic = client.addReservationSync(sluice::Request(1000000, seconds(600)), limit);
        std::uint64_t begun = client.beginPhase(basic.id(), phase, limit);
        check(client.details(begun, limit).phase_of == basic.id(), "the phase is one of it");
        check(client.endPhase(begun, limit), "the phase ends");
        client.extendReservation(basic.id(), seconds(1), limit);
        basic.finish(limit);
    }
    {
        sluice::Reservation gone = client.addReservationSync(sluice::Request(1000000, seconds(600)), limit);
        check(client.removeReservation(gone.id(), limit), "another removes it");
        try {
            gone.finish(limit);
            check(false, "what has ended cannot be finished");
        } catch (const sluice::Error &error) {
            check(error.code() == SLUICE_ERROR_NOT_FOUND, "the code says so");
        }
        check(gone.id() == 0, "and nothing is left to remove");
    }
    check(client.credit(limit).outstanding == 0, "nothing is left");
    check(client.usage(3600, "", limit).written_bytes == client.usage(3600, "calls.cpp", limit).written_bytes, "nothing was written");
    check(client.why("", limit).find("\"waits\"") != std::string::npos, "why is JSON with waits");
    check(client.why("calls.cpp", limit)[0] == '{', "and of a job");
    try {
        client.addReservationAsync(sluice::Request(43000000, seconds(60)), limit);
        check(false, "too much is refused");
    } catch (const sluice::Error &error) {
        check(error.code() == SLUICE_ERROR_DOES_NOT_FIT, "the code says so");
        check(std::string(error.refusal().bottleneck) == "fs", "the target is named");
    }
    std::cout << "ok\n";
}
