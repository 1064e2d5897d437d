// dump: writes DIRECTORY/dump within a reservation, with sluice.hpp.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <sluice.hpp>

static bool write(const std::string &directory) {
    std::vector<char> state(1 << 20);
    std::ofstream file(directory + "/dump", std::ios::binary);
    file.write(state.data(), static_cast<std::streamsize>(state.size()));
    file.close();
    return !file.fail();
}

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: dump DIRECTORY\n";
        return 2;
    }
    std::unique_ptr<sluice::Client> client;
    std::unique_ptr<sluice::Reservation> slot;
    try {
        client.reset(new sluice::Client());
        sluice::Request request(1000000, std::chrono::seconds(10));
        request.claimWindow(std::chrono::seconds(30));
        if (const char *job = std::getenv("SLURM_JOB_ID")) request.job(job);
        slot.reset(new sluice::Reservation(client->addReservationSync(request, std::chrono::minutes(2))));
    } catch (const sluice::Error &error) {
        std::cerr << "dump: " << error.what() << "; going on without reservations\n";
        // It was not active in time: the end of this scope removes it.
        if (error.id() != 0) sluice::Reservation(*client, error.id());
    }
    if (!write(argv[1])) return 1;
    const char *how = slot ? "reserved" : "best effort";
    try {
        if (slot) slot->finish(std::chrono::minutes(1));
    } catch (const sluice::Error &error) {
        // It ends with its time, and the dump is as good.
        std::cerr << "dump: reservation: " << error.what() << "\n";
    }
    std::cout << "dump: " << how << "\n";
    return 0;
}
