// dump: writes DIRECTORY/dump within a reservation, with sluice.hpp.
#include <cstdlib>
#include <fstream>
#include <iostream>
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
    try {
        sluice::Client client;
        sluice::Request request(1000000, std::chrono::seconds(10));
        request.claimWindow(std::chrono::seconds(30));
        if (const char *job = std::getenv("SLURM_JOB_ID")) request.job(job);
        sluice::Reservation reservation = client.addReservationSync(request, std::chrono::minutes(2));
        if (!write(argv[1])) return 1;
        reservation.finish();
        std::cout << "dump: reserved\n";
    } catch (const sluice::Error &error) {
        std::cerr << "dump: " << error.what() << "; going on without reservations\n";
        if (!write(argv[1])) return 1;
        std::cout << "dump: best effort\n";
    }
    return 0;
}
