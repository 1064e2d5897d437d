// sluice.hpp: the calls of sluice.h for C++11 and later, header only. docs/LIBRARY.md is the guide to it.
//
//     sluice::Client client;                                   // settings of the environment
//     sluice::Request request(500000000, std::chrono::seconds(60), "scratch/run7");
//     sluice::Reservation slot = client.addReservationSync(request, std::chrono::seconds(30));
//     ... write ...
//     slot.finish();                                           // without it: removed at the end of the scope
//
// Errors are thrown as sluice::Error, with the code and the text. Units, threads and time limits are those of sluice.h.
#ifndef SLUICE_HPP
#define SLUICE_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sluice.h"

namespace sluice {

/// Why a call failed.
class Error : public std::runtime_error {
public:
    /// The error of a call that has just returned `code` on this thread. `id` is that of a reservation that stays.
    explicit Error(int code, std::uint64_t id = 0)
        : std::runtime_error(std::string(sluice_strerror(code)) + ": " + sluice_error_text()), code_(code), id_(id) {
        if (code == SLUICE_ERROR_DOES_NOT_FIT) sluice_get_refusal(&refusal_);
    }
    /// One of sluice_error.
    int code() const { return code_; }
    /// After any error of a synchronous request: the reservation, which stays, or 0.
    std::uint64_t id() const { return id_; }
    /// After SLUICE_ERROR_DOES_NOT_FIT: why, and what would.
    const sluice_refusal &refusal() const { return refusal_; }

private:
    int code_;
    std::uint64_t id_;
    sluice_refusal refusal_ = SLUICE_REFUSAL_INIT;
};

/// A time limit or span.
using Nanoseconds = std::chrono::nanoseconds;
using Milliseconds = std::chrono::milliseconds;

/// UNDEFINED, SCHEDULED, ACTIVE.
enum class State { Undefined = SLUICE_UNDEFINED, Scheduled = SLUICE_SCHEDULED, Active = SLUICE_ACTIVE };

/// A request; it keeps its own texts and phases.
class Request {
public:
    /// `write` bytes per second for `duration`, for the files below `path` (EXPORT/DIR, a path below a mount, or empty:
    /// all files). REQUIRES: duration > 0.
    explicit Request(std::uint64_t write, Nanoseconds duration, std::string path = "") : path_(std::move(path)) {
        request_.write_bytes_per_s = write;
        request_.duration_ns = static_cast<std::uint64_t>(duration.count());
    }
    Request &read(std::uint64_t bytes_per_s) { request_.read_bytes_per_s = bytes_per_s; return *this; }
    Request &metadata(std::uint64_t ops_per_s) { request_.metadata_ops_per_s = ops_per_s; return *this; }
    Request &notBefore(std::uint64_t unix_ns) { request_.not_before_ns = unix_ns; return *this; }
    Request &by(std::uint64_t unix_ns) { request_.by_ns = unix_ns; return *this; }
    Request &after(std::uint64_t id) { request_.after = id; return *this; }
    Request &claimWindow(Nanoseconds span) { request_.claim_window_ns = static_cast<std::uint64_t>(span.count()); return *this; }
    Request &job(std::string name) { job_ = std::move(name); return *this; }
    Request &key(std::string text) { key_ = std::move(text); return *this; }
    Request &nodes(std::uint32_t count) { request_.nodes = count; return *this; }
    Request &flags(std::uint32_t bits) { request_.flags = bits; return *this; }
    Request &phase(const sluice_phase &phase) { phases_.push_back(phase); return *this; }

    /// The request as the C call takes it, valid as long as this object is not changed.
    sluice_request get() const {
        sluice_request out = request_;
        out.job = job_.empty() ? nullptr : job_.c_str();
        out.path = path_.empty() ? nullptr : path_.c_str();
        out.idempotency_key = key_.empty() ? nullptr : key_.c_str();
        out.phases = phases_.empty() ? nullptr : phases_.data();
        out.phase_count = phases_.size();
        return out;
    }

private:
    sluice_request request_ = SLUICE_REQUEST_INIT;
    std::string job_, path_, key_;
    std::vector<sluice_phase> phases_;
};

class Reservation;

/// A handle. Copies share it, and so may threads.
class Client {
public:
    /// Opens it with the settings of the environment.
    Client() : Client(static_cast<const sluice_settings *>(nullptr)) {}
    /// Opens it with these settings; null: the environment.
    explicit Client(const sluice_settings *settings) {
        sluice_client *opened = nullptr;
        check(sluice_open(settings, &opened));
        handle_ = std::shared_ptr<sluice_client>(opened, sluice_close);
    }
    sluice_client *get() const { return handle_.get(); }

    /// Returns the number of a new reservation, which is SCHEDULED, or soon ACTIVE.
    std::uint64_t addReservationAsync(const Request &request, Milliseconds limit = defaultLimit()) {
        sluice_request wanted = request.get();
        std::uint64_t id = 0;
        check(sluice_add_reservation_async(get(), &wanted, ms(limit), &id));
        return id;
    }
    /// Returns a reservation that is ACTIVE. After an error Error::id() is the reservation, which stays, or 0.
    Reservation addReservationSync(const Request &request, Milliseconds limit);
    /// Tests, and so claims, a reservation. UNDEFINED after SCHEDULED: request again.
    State testReservation(std::uint64_t id, Milliseconds limit = defaultLimit()) {
        return static_cast<State>(check(sluice_test_reservation(get(), id, ms(limit))));
    }
    /// Waits until it is ACTIVE or has ended; SCHEDULED when the limit has passed.
    State waitReservation(std::uint64_t id, Milliseconds limit) {
        return static_cast<State>(check(sluice_wait_reservation(get(), id, ms(limit))));
    }
    /// Removes a reservation; false if it was UNDEFINED.
    bool removeReservation(std::uint64_t id, Milliseconds limit = defaultLimit()) {
        return check(sluice_remove_reservation(get(), id, ms(limit))) == 1;
    }
    /// Ends a reservation early and returns the credit in bytes.
    std::uint64_t finishReservation(std::uint64_t id, Milliseconds limit = defaultLimit()) {
        std::uint64_t credit = 0;
        check(sluice_finish_reservation(get(), id, ms(limit), &credit));
        return credit;
    }
    /// Extends a claimed reservation and returns its new end.
    std::uint64_t extendReservation(std::uint64_t id, Nanoseconds more, Milliseconds limit = defaultLimit()) {
        std::uint64_t end = 0;
        check(sluice_extend_reservation(get(), id, static_cast<std::uint64_t>(more.count()), ms(limit), &end));
        return end;
    }
    std::uint64_t beginPhase(std::uint64_t id, const sluice_phase &phase, Milliseconds limit = defaultLimit()) {
        std::uint64_t made = 0;
        check(sluice_begin_phase(get(), id, &phase, ms(limit), &made));
        return made;
    }
    std::uint64_t expectPhase(std::uint64_t id, const sluice_phase &phase, Milliseconds limit = defaultLimit()) {
        std::uint64_t made = 0;
        check(sluice_expect_phase(get(), id, &phase, ms(limit), &made));
        return made;
    }
    bool endPhase(std::uint64_t phase, Milliseconds limit = defaultLimit()) {
        return check(sluice_end_phase(get(), phase, ms(limit))) == 1;
    }
    sluice_details details(std::uint64_t id, Milliseconds limit = defaultLimit()) {
        sluice_details out = SLUICE_DETAILS_INIT;
        check(sluice_get_details(get(), id, ms(limit), &out));
        return out;
    }
    sluice_usage usage(std::uint32_t since_s, const std::string &job = "", Milliseconds limit = defaultLimit()) {
        sluice_usage out = SLUICE_USAGE_INIT;
        check(sluice_get_usage(get(), job.empty() ? nullptr : job.c_str(), since_s, ms(limit), &out));
        return out;
    }
    sluice_credit credit(Milliseconds limit = defaultLimit()) {
        sluice_credit out = SLUICE_CREDIT_INIT;
        check(sluice_get_credit(get(), ms(limit), &out));
        return out;
    }
    /// What limits and delays a job, or with an empty name all requests of the user, as JSON (docs/WHY.md).
    std::string why(const std::string &job = "", Milliseconds limit = defaultLimit()) {
        std::vector<char> text(1 << 16);
        for (;;) {
            const char *name = job.empty() ? nullptr : job.c_str();
            std::size_t needed = 0;
            int code = sluice_get_why(get(), name, ms(limit), text.data(), text.size(), &needed);
            if (code != SLUICE_ERROR_BUFFER_TOO_SMALL) {
                check(code);
                return text.data();
            }
            text.resize(2 * needed);
        }
    }
    /// Cancels the calls of other threads on this handle.
    int cancel() { return sluice_cancel(get()); }

    /// The limit of calls that are given none.
    static Milliseconds defaultLimit() { return Milliseconds(5000); }

private:
    static int check(int code) {
        if (code < 0) throw Error(code);
        return code;
    }
    static std::uint32_t ms(Milliseconds limit) {
        if (limit.count() < 1) return 1;
        return limit.count() > 4294967295LL ? 4294967295u : static_cast<std::uint32_t>(limit.count());
    }
    std::shared_ptr<sluice_client> handle_;
};

/// An owned reservation: removed at the end of its scope unless it was finished or released.
class Reservation {
public:
    Reservation(Client client, std::uint64_t id) : client_(std::move(client)), id_(id) {}
    Reservation(Reservation &&other) noexcept : client_(other.client_), id_(other.release()) {}
    Reservation &operator=(Reservation &&other) noexcept {
        std::swap(client_, other.client_);
        std::swap(id_, other.id_);
        return *this;
    }
    Reservation(const Reservation &) = delete;
    Reservation &operator=(const Reservation &) = delete;
    ~Reservation() {
        // An error cannot be thrown here; the reservation then ends with its time.
        if (id_ != 0) sluice_remove_reservation(client_.get(), id_, 5000);
    }
    std::uint64_t id() const { return id_; }
    /// Ends it early and returns the credit in bytes.
    std::uint64_t finish(Milliseconds limit = Client::defaultLimit()) {
        try {
            std::uint64_t credit = client_.finishReservation(id_, limit);
            release();
            return credit;
        } catch (const Error &error) {
            if (error.code() == SLUICE_ERROR_NOT_FOUND) release();  // it has ended: nothing is left to remove
            throw;
        }
    }
    /// Gives it up to the caller, who has its number.
    std::uint64_t release() {
        std::uint64_t id = id_;
        id_ = 0;
        return id;
    }

private:
    Client client_;
    std::uint64_t id_;
};

inline Reservation Client::addReservationSync(const Request &request, Milliseconds limit) {
    sluice_request wanted = request.get();
    std::uint64_t id = 0;
    int code = sluice_add_reservation_sync(get(), &wanted, ms(limit), &id);
    if (code < 0) throw Error(code, id);
    return Reservation(*this, id);
}

}  // namespace sluice

#endif
