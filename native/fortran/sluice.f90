! Reservations of storage bandwidth for Fortran programs: the calls of sluice.h by ISO_C_BINDING (Fortran 2003).
!
!     use sluice
!     type(sluice_handle) :: client
!     type(sluice_request) :: request
!     integer(int64) :: id
!     if (sluice_open_environment(client) == SLUICE_OK) then
!        request%write_bytes_per_s = 500000000_int64
!        request%duration_ns = 60 * SLUICE_SECOND
!        if (addReservationSync(client, request, 30000, id, path='scratch/run7') == SLUICE_OK) then
!           ! ... write ...
!           status = finishReservation(client, id, 5000)
!        end if
!        call sluice_close_handle(client)
!     end if
!
! Units, states and codes are those of sluice.h. Numbers are signed here: values up to 2**63 - 1, time limits up to
! 2**31 - 1 ms.
module sluice
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64
  implicit none
  private

  integer(int64), parameter, public :: SLUICE_SECOND = 1000000000_int64
  integer, parameter, public :: SLUICE_UNDEFINED = 0, SLUICE_SCHEDULED = 1, SLUICE_ACTIVE = 2
  integer, parameter, public :: SLUICE_OK = 0
  integer, parameter, public :: SLUICE_ERROR_INVALID_ARGUMENT = -1, SLUICE_ERROR_SETTINGS = -2
  integer, parameter, public :: SLUICE_ERROR_UNREACHABLE = -3, SLUICE_ERROR_TIMED_OUT = -4
  integer, parameter, public :: SLUICE_ERROR_CANCELLED = -5, SLUICE_ERROR_DOES_NOT_FIT = -6
  integer, parameter, public :: SLUICE_ERROR_LIMIT_REACHED = -7, SLUICE_ERROR_NOT_FOUND = -8
  integer, parameter, public :: SLUICE_ERROR_UNAUTHENTICATED = -9, SLUICE_ERROR_PERMISSION_DENIED = -10
  integer, parameter, public :: SLUICE_ERROR_REFUSED = -11, SLUICE_ERROR_PROTOCOL = -12
  integer, parameter, public :: SLUICE_ERROR_UNAVAILABLE = -13, SLUICE_ERROR_UNTRUSTED = -14
  integer, parameter, public :: SLUICE_ERROR_IN_DOUBT = -15, SLUICE_ERROR_ENDED = -16
  integer, parameter, public :: SLUICE_ERROR_INTERNAL = -17, SLUICE_ERROR_BUFFER_TOO_SMALL = -18
  integer(c_int32_t), parameter, public :: SLUICE_EXACT = 1, SLUICE_SPONTANEOUS = 2, SLUICE_SPEND_CREDIT = 4

  ! A handle, which threads may share.
  type, public :: sluice_handle
     private
     type(c_ptr) :: handle = c_null_ptr
  end type sluice_handle

  ! A part of the time of a reservation with higher rates.
  type, bind(c), public :: sluice_phase
     integer(c_int64_t) :: start_ns = 0, tolerance_ns = 0, duration_ns = 0
     integer(c_int64_t) :: read_bytes_per_s = 0, write_bytes_per_s = 0, metadata_ops_per_s = 0
     integer(c_int64_t) :: reserved(2) = 0
  end type sluice_phase

  ! A request; texts and phases are arguments of the calls.
  type, bind(c), public :: sluice_request
     integer(c_size_t) :: struct_size = 120
     integer(c_int64_t) :: read_bytes_per_s = 0, write_bytes_per_s = 0, metadata_ops_per_s = 0
     integer(c_int64_t) :: duration_ns = 0, not_before_ns = 0, by_ns = 0, claim_window_ns = 0, after = 0
     type(c_ptr) :: job = c_null_ptr, path = c_null_ptr, idempotency_key = c_null_ptr
     type(c_ptr) :: phases = c_null_ptr
     integer(c_size_t) :: phase_count = 0
     integer(c_int32_t) :: flags = 0, nodes = 0
  end type sluice_request

  ! A reservation.
  type, bind(c), public :: sluice_details
     integer(c_size_t) :: struct_size = 544
     integer(c_int64_t) :: id = 0
     integer(c_int32_t) :: state = 0, reduced_ppm = 0
     integer(c_int64_t) :: start_ns = 0, end_ns = 0, guaranteed_ns = 0, claim_by_ns = 0, claimed_ns = 0
     integer(c_int64_t) :: read_bytes_per_s = 0, write_bytes_per_s = 0, metadata_ops_per_s = 0
     integer(c_int64_t) :: used_bytes = 0, credit_bytes = 0, phase_of = 0, next_phase = 0, next_phase_start_ns = 0
     character(kind=c_char) :: ended(32) = c_null_char, target(128) = c_null_char
     character(kind=c_char) :: reduced_because(256) = c_null_char
  end type sluice_details

  ! Why a reservation does not fit, and what would.
  type, bind(c), public :: sluice_refusal
     integer(c_size_t) :: struct_size = 696
     integer(c_int64_t) :: next_start_ns = 0
     integer(c_int32_t) :: fits_now_ppm = 0, reserved = 0
     character(kind=c_char) :: kind(32) = c_null_char, bottleneck(128) = c_null_char, taken_by(512) = c_null_char
  end type sluice_refusal

  ! What was served to the caller or its job.
  type, bind(c), public :: sluice_usage
     integer(c_size_t) :: struct_size = 32
     integer(c_int64_t) :: read_bytes = 0, written_bytes = 0, delayed_ns = 0
  end type sluice_usage

  ! The credit of the caller.
  type, bind(c), public :: sluice_credit
     integer(c_size_t) :: struct_size = 32
     integer(c_int64_t) :: bytes = 0, outstanding_bytes = 0
     integer(c_int32_t) :: outstanding = 0, reserved = 0
  end type sluice_credit

  public :: sluice_open_environment, sluice_open_controller, sluice_close_handle, sluice_error_message
  public :: addReservationAsync, addReservationSync, testReservation, waitReservation, removeReservation
  public :: finishReservation, extendReservation, beginPhase, expectPhase, endPhase, reservationDetails
  public :: reservationRefusal, reservationUsage, reservationCredit, reservationWhy
  public :: sluice_cancel_calls, sluice_text

  type, bind(c) :: settings
     integer(c_size_t) :: struct_size = 48
     type(c_ptr) :: controller = c_null_ptr, ca_file = c_null_ptr, token_file = c_null_ptr
     type(c_ptr) :: cert_file = c_null_ptr, key_file = c_null_ptr
  end type settings

  interface
     integer(c_int) function c_open(wanted, client) bind(c, name='sluice_open')
       import :: c_int, c_ptr
       type(c_ptr), value :: wanted
       type(c_ptr) :: client
     end function c_open
     subroutine c_close(client) bind(c, name='sluice_close')
       import :: c_ptr
       type(c_ptr), value :: client
     end subroutine c_close
     integer(c_int) function c_cancel(client) bind(c, name='sluice_cancel')
       import :: c_int, c_ptr
       type(c_ptr), value :: client
     end function c_cancel
     type(c_ptr) function c_error_text() bind(c, name='sluice_error_text')
       import :: c_ptr
     end function c_error_text
     integer(c_size_t) function c_strlen(text) bind(c, name='strlen')
       import :: c_ptr, c_size_t
       type(c_ptr), value :: text
     end function c_strlen
     integer(c_int) function c_add_async(client, request, limit_ms, id) bind(c, name='sluice_add_reservation_async')
       import :: c_int, c_ptr, c_int32_t, c_int64_t, sluice_request
       type(c_ptr), value :: client
       type(sluice_request) :: request
       integer(c_int32_t), value :: limit_ms
       integer(c_int64_t) :: id
     end function c_add_async
     integer(c_int) function c_add_sync(client, request, limit_ms, id) bind(c, name='sluice_add_reservation_sync')
       import :: c_int, c_ptr, c_int32_t, c_int64_t, sluice_request
       type(c_ptr), value :: client
       type(sluice_request) :: request
       integer(c_int32_t), value :: limit_ms
       integer(c_int64_t) :: id
     end function c_add_sync
     integer(c_int) function c_test(client, id, limit_ms) bind(c, name='sluice_test_reservation')
       import :: c_int, c_ptr, c_int32_t, c_int64_t
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id
       integer(c_int32_t), value :: limit_ms
     end function c_test
     integer(c_int) function c_wait(client, id, limit_ms) bind(c, name='sluice_wait_reservation')
       import :: c_int, c_ptr, c_int32_t, c_int64_t
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id
       integer(c_int32_t), value :: limit_ms
     end function c_wait
     integer(c_int) function c_remove(client, id, limit_ms) bind(c, name='sluice_remove_reservation')
       import :: c_int, c_ptr, c_int32_t, c_int64_t
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id
       integer(c_int32_t), value :: limit_ms
     end function c_remove
     integer(c_int) function c_finish(client, id, limit_ms, credit) bind(c, name='sluice_finish_reservation')
       import :: c_int, c_ptr, c_int32_t, c_int64_t
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id
       integer(c_int32_t), value :: limit_ms
       integer(c_int64_t) :: credit
     end function c_finish
     integer(c_int) function c_extend(client, id, more_ns, limit_ms, end_ns) bind(c, name='sluice_extend_reservation')
       import :: c_int, c_ptr, c_int32_t, c_int64_t
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id, more_ns
       integer(c_int32_t), value :: limit_ms
       integer(c_int64_t) :: end_ns
     end function c_extend
     integer(c_int) function c_begin_phase(client, id, phase, limit_ms, made) bind(c, name='sluice_begin_phase')
       import :: c_int, c_ptr, c_int32_t, c_int64_t, sluice_phase
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id
       type(sluice_phase) :: phase
       integer(c_int32_t), value :: limit_ms
       integer(c_int64_t) :: made
     end function c_begin_phase
     integer(c_int) function c_expect_phase(client, id, phase, limit_ms, made) bind(c, name='sluice_expect_phase')
       import :: c_int, c_ptr, c_int32_t, c_int64_t, sluice_phase
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id
       type(sluice_phase) :: phase
       integer(c_int32_t), value :: limit_ms
       integer(c_int64_t) :: made
     end function c_expect_phase
     integer(c_int) function c_end_phase(client, phase, limit_ms) bind(c, name='sluice_end_phase')
       import :: c_int, c_ptr, c_int32_t, c_int64_t
       type(c_ptr), value :: client
       integer(c_int64_t), value :: phase
       integer(c_int32_t), value :: limit_ms
     end function c_end_phase
     integer(c_int) function c_details(client, id, limit_ms, details) bind(c, name='sluice_get_details')
       import :: c_int, c_ptr, c_int32_t, c_int64_t, sluice_details
       type(c_ptr), value :: client
       integer(c_int64_t), value :: id
       integer(c_int32_t), value :: limit_ms
       type(sluice_details) :: details
     end function c_details
     integer(c_int) function c_refusal(refusal) bind(c, name='sluice_get_refusal')
       import :: c_int, sluice_refusal
       type(sluice_refusal) :: refusal
     end function c_refusal
     integer(c_int) function c_usage(client, job, since_s, limit_ms, usage) bind(c, name='sluice_get_usage')
       import :: c_int, c_ptr, c_int32_t, sluice_usage
       type(c_ptr), value :: client, job
       integer(c_int32_t), value :: since_s, limit_ms
       type(sluice_usage) :: usage
     end function c_usage
     integer(c_int) function c_credit(client, limit_ms, credit) bind(c, name='sluice_get_credit')
       import :: c_int, c_ptr, c_int32_t, sluice_credit
       type(c_ptr), value :: client
       integer(c_int32_t), value :: limit_ms
       type(sluice_credit) :: credit
     end function c_credit
     integer(c_int) function c_why(client, job, limit_ms, buffer, length, needed) bind(c, name='sluice_get_why')
       import :: c_int, c_ptr, c_int32_t, c_size_t
       type(c_ptr), value :: client, job, buffer
       integer(c_int32_t), value :: limit_ms
       integer(c_size_t), value :: length
       integer(c_size_t) :: needed
     end function c_why
  end interface

contains

  ! Opens a handle with the settings of the environment.
  integer function sluice_open_environment(client) result(status)
    type(sluice_handle), intent(out) :: client
    status = c_open(c_null_ptr, client%handle)
  end function sluice_open_environment

  ! Opens a handle to these controllers; the rest comes from the environment.
  integer function sluice_open_controller(client, controller) result(status)
    type(sluice_handle), intent(out) :: client
    character(len=*), intent(in) :: controller
    type(settings), target :: wanted
    character(kind=c_char, len=len(controller) + 1), target :: text
    text = controller // c_null_char
    wanted%controller = c_loc(text)
    status = c_open(c_loc(wanted), client%handle)
  end function sluice_open_controller

  subroutine sluice_close_handle(client)
    type(sluice_handle), intent(inout) :: client
    call c_close(client%handle)
    client%handle = c_null_ptr
  end subroutine sluice_close_handle

  ! Lets the calls of other threads on this handle return SLUICE_ERROR_CANCELLED.
  integer function sluice_cancel_calls(client) result(count)
    type(sluice_handle), intent(in) :: client
    count = c_cancel(client%handle)
  end function sluice_cancel_calls

  ! The reason of this thread's last error.
  function sluice_error_message() result(message)
    character(len=:), allocatable :: message
    type(c_ptr) :: text
    character(kind=c_char), pointer :: letters(:)
    text = c_error_text()
    call c_f_pointer(text, letters, [c_strlen(text)])
    message = sluice_text(letters)
  end function sluice_error_message

  ! The text of a field of a struct, to its first NUL.
  function sluice_text(letters) result(text)
    character(kind=c_char), intent(in) :: letters(:)
    character(len=:), allocatable :: text
    integer :: at, length
    length = 0
    do while (length < size(letters))
       if (letters(length + 1) == c_null_char) exit
       length = length + 1
    end do
    allocate (character(len=length) :: text)
    do at = 1, length
       text(at:at) = letters(at)
    end do
  end function sluice_text

  ! Requests a reservation; it is SCHEDULED then, or soon ACTIVE.
  integer function addReservationAsync(client, request, limit_ms, id, job, path, phases) result(status)
    type(sluice_handle), intent(in) :: client
    type(sluice_request), intent(in) :: request
    integer(c_int32_t), intent(in) :: limit_ms
    integer(int64), intent(out) :: id
    character(len=*), intent(in), optional :: job, path
    type(sluice_phase), intent(in), optional :: phases(:)
    status = add(.false., client, request, limit_ms, id, job, path, phases)
  end function addReservationAsync

  ! Requests a reservation and returns when it is ACTIVE. After any error it stays if id is not 0.
  integer function addReservationSync(client, request, limit_ms, id, job, path, phases) result(status)
    type(sluice_handle), intent(in) :: client
    type(sluice_request), intent(in) :: request
    integer(c_int32_t), intent(in) :: limit_ms
    integer(int64), intent(out) :: id
    character(len=*), intent(in), optional :: job, path
    type(sluice_phase), intent(in), optional :: phases(:)
    status = add(.true., client, request, limit_ms, id, job, path, phases)
  end function addReservationSync

  integer function add(sync, client, request, limit_ms, id, job, path, phases) result(status)
    logical, intent(in) :: sync
    type(sluice_handle), intent(in) :: client
    type(sluice_request), intent(in) :: request
    integer(c_int32_t), intent(in) :: limit_ms
    integer(int64), intent(out) :: id
    character(len=*), intent(in), optional :: job, path
    type(sluice_phase), intent(in), optional :: phases(:)
    type(sluice_request) :: wanted
    character(kind=c_char, len=:), allocatable, target :: job_text, path_text
    type(sluice_phase), allocatable, target :: parts(:)
    wanted = request
    if (present(job)) then
       job_text = trim(job) // c_null_char
       wanted%job = c_loc(job_text)
    end if
    if (present(path)) then
       path_text = trim(path) // c_null_char
       wanted%path = c_loc(path_text)
    end if
    if (present(phases)) then
       parts = phases
       wanted%phases = c_loc(parts)
       wanted%phase_count = size(phases)
    end if
    if (sync) then
       status = c_add_sync(client%handle, wanted, limit_ms, id)
    else
       status = c_add_async(client%handle, wanted, limit_ms, id)
    end if
  end function add

  ! SLUICE_UNDEFINED, SLUICE_SCHEDULED or SLUICE_ACTIVE, or a code. It claims an active reservation.
  integer function testReservation(client, id, limit_ms) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id
    integer(c_int32_t), intent(in) :: limit_ms
    status = c_test(client%handle, id, limit_ms)
  end function testReservation

  ! SLUICE_ACTIVE, SLUICE_UNDEFINED if it has ended, SLUICE_SCHEDULED when the limit has passed, or a code.
  integer function waitReservation(client, id, limit_ms) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id
    integer(c_int32_t), intent(in) :: limit_ms
    status = c_wait(client%handle, id, limit_ms)
  end function waitReservation

  ! 1: removed, 0: it was UNDEFINED.
  integer function removeReservation(client, id, limit_ms) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id
    integer(c_int32_t), intent(in) :: limit_ms
    status = c_remove(client%handle, id, limit_ms)
  end function removeReservation

  ! Ends a reservation early, for a credit in bytes.
  integer function finishReservation(client, id, limit_ms, credit) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id
    integer(c_int32_t), intent(in) :: limit_ms
    integer(int64), intent(out), optional :: credit
    integer(c_int64_t) :: bytes
    bytes = 0
    status = c_finish(client%handle, id, limit_ms, bytes)
    if (present(credit)) credit = bytes
  end function finishReservation

  ! Lets a claimed reservation end later.
  integer function extendReservation(client, id, more_ns, limit_ms, end_ns) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id, more_ns
    integer(c_int32_t), intent(in) :: limit_ms
    integer(int64), intent(out) :: end_ns
    status = c_extend(client%handle, id, more_ns, limit_ms, end_ns)
  end function extendReservation

  ! Adds a phase that begins now, or within its tolerance.
  integer function beginPhase(client, id, phase, limit_ms, made) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id
    type(sluice_phase), intent(in) :: phase
    integer(c_int32_t), intent(in) :: limit_ms
    integer(int64), intent(out) :: made
    status = c_begin_phase(client%handle, id, phase, limit_ms, made)
  end function beginPhase

  ! Adds a phase that is expected at start_ns.
  integer function expectPhase(client, id, phase, limit_ms, made) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id
    type(sluice_phase), intent(in) :: phase
    integer(c_int32_t), intent(in) :: limit_ms
    integer(int64), intent(out) :: made
    status = c_expect_phase(client%handle, id, phase, limit_ms, made)
  end function expectPhase

  ! 1: ended, 0: it had ended before.
  integer function endPhase(client, phase, limit_ms) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: phase
    integer(c_int32_t), intent(in) :: limit_ms
    status = c_end_phase(client%handle, phase, limit_ms)
  end function endPhase

  ! Reads a reservation without claiming it.
  integer function reservationDetails(client, id, limit_ms, details) result(status)
    type(sluice_handle), intent(in) :: client
    integer(int64), intent(in) :: id
    integer(c_int32_t), intent(in) :: limit_ms
    type(sluice_details), intent(inout) :: details
    status = c_details(client%handle, id, limit_ms, details)
  end function reservationDetails

  ! The refusal of this thread's last error; SLUICE_ERROR_NOT_FOUND if that is not SLUICE_ERROR_DOES_NOT_FIT.
  integer function reservationRefusal(refusal) result(status)
    type(sluice_refusal), intent(inout) :: refusal
    status = c_refusal(refusal)
  end function reservationRefusal

  ! What was served in the last since_s seconds to a job, or without one to the user of this process.
  integer function reservationUsage(client, since_s, limit_ms, usage, job) result(status)
    type(sluice_handle), intent(in) :: client
    integer(c_int32_t), intent(in) :: since_s, limit_ms
    type(sluice_usage), intent(inout) :: usage
    character(len=*), intent(in), optional :: job
    character(kind=c_char, len=:), allocatable, target :: job_text
    type(c_ptr) :: name
    name = c_null_ptr
    if (present(job)) then
       job_text = trim(job) // c_null_char
       name = c_loc(job_text)
    end if
    status = c_usage(client%handle, name, since_s, limit_ms, usage)
  end function reservationUsage

  ! The credit of the caller.
  integer function reservationCredit(client, limit_ms, credit) result(status)
    type(sluice_handle), intent(in) :: client
    integer(c_int32_t), intent(in) :: limit_ms
    type(sluice_credit), intent(inout) :: credit
    status = c_credit(client%handle, limit_ms, credit)
  end function reservationCredit

  ! What limits and delays a job, or without one all requests of the user of this process, as JSON.
  integer function reservationWhy(client, limit_ms, text, job) result(status)
    type(sluice_handle), intent(in) :: client
    integer(c_int32_t), intent(in) :: limit_ms
    character(len=:), allocatable, intent(out) :: text
    character(len=*), intent(in), optional :: job
    character(kind=c_char, len=:), allocatable, target :: job_text
    character(kind=c_char), allocatable, target :: buffer(:)
    type(c_ptr) :: name
    integer(c_size_t) :: length, needed
    name = c_null_ptr
    if (present(job)) then
       job_text = trim(job) // c_null_char
       name = c_loc(job_text)
    end if
    length = 65536
    do
       allocate (buffer(length))
       needed = 0
       status = c_why(client%handle, name, limit_ms, c_loc(buffer), length, needed)
       if (status /= SLUICE_ERROR_BUFFER_TOO_SMALL) exit
       deallocate (buffer)
       length = 2 * needed
    end do
    text = ''
    if (status == SLUICE_OK) text = sluice_text(buffer)
  end function reservationWhy
end module sluice
