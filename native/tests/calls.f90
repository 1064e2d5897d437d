! The calls of the Fortran module against a controller with one target, of which 42.5 MB/s can be reserved.
program calls
  use, intrinsic :: iso_c_binding, only: c_sizeof
  use, intrinsic :: iso_fortran_env, only: error_unit, int64
  use sluice
  implicit none
  integer, parameter :: limit = 120000
  type(sluice_handle) :: client
  type(sluice_request) :: request
  type(sluice_phase) :: phase, phases(1)
  type(sluice_details) :: details
  type(sluice_refusal) :: refusal
  type(sluice_usage) :: usage
  type(sluice_credit) :: account
  character(len=:), allocatable :: why
  integer(int64) :: id, part, credit, end_ns

  call check(c_sizeof(phase) == 64 .and. c_sizeof(request) == 120 .and. c_sizeof(details) == 544, 'sizes')
  call check(c_sizeof(refusal) == 696 .and. c_sizeof(usage) == 32 .and. c_sizeof(account) == 32, 'more sizes')
  call check(sluice_open_controller(client, 'ftp://x') == SLUICE_ERROR_SETTINGS, 'no endpoint')
  call check(index(sluice_error_message(), 'ftp://x') > 0, 'the text names it')
  call check(sluice_open_environment(client) == SLUICE_OK, 'open')
  request%write_bytes_per_s = 1000000
  request%duration_ns = 600 * SLUICE_SECOND
  call check(addReservationAsync(client, request, limit, id, job='calls.3', path='x/out') == SLUICE_OK, 'async')
  call check(waitReservation(client, id, limit) == SLUICE_ACTIVE, 'wait')
  call check(testReservation(client, id, limit) == SLUICE_ACTIVE, 'test')
  call check(reservationDetails(client, id, limit, details) == SLUICE_OK, 'details')
  call check(details%id == id .and. sluice_text(details%target) == 'fs', 'its target')
  call check(extendReservation(client, id, SLUICE_SECOND, limit, end_ns) == SLUICE_OK, 'extend')
  call check(end_ns == details%end_ns + SLUICE_SECOND, 'its end')
  phase%write_bytes_per_s = 2000000
  phase%duration_ns = 60 * SLUICE_SECOND
  phase%tolerance_ns = 60 * SLUICE_SECOND
  call check(beginPhase(client, id, phase, limit, part) == SLUICE_OK, 'begin a phase')
  call check(endPhase(client, part, limit) == 1, 'end the phase')
  phase%start_ns = details%start_ns + 300 * SLUICE_SECOND
  call check(expectPhase(client, id, phase, limit, part) == SLUICE_OK, 'expect a phase')
  call check(finishReservation(client, id, limit, credit) == SLUICE_OK .and. credit == 0, 'finish')
  call check(testReservation(client, id, limit) == SLUICE_UNDEFINED, 'it has ended')
  phases(1) = phase
  phases(1)%start_ns = 10 * SLUICE_SECOND
  call check(addReservationSync(client, request, limit, id, phases=phases) == SLUICE_OK, 'sync')
  call check(removeReservation(client, id, limit) == 1, 'remove')
  call check(removeReservation(client, id, limit) == 0, 'removed once')
  account%outstanding = 7
  call check(reservationCredit(client, limit, account) == SLUICE_OK, 'credit')
  call check(account%outstanding == 0 .and. account%bytes == 0, 'nothing is left')
  call check(reservationUsage(client, 3600, limit, usage) == SLUICE_OK, 'usage of the user')
  usage%written_bytes = 7
  call check(reservationUsage(client, 3600, limit, usage, job='calls.3') == SLUICE_OK, 'usage of the job')
  call check(usage%written_bytes == 0, 'nothing was written')
  call check(reservationWhy(client, limit, why) == SLUICE_OK, 'why of the user')
  call check(why(1:1) == '{' .and. index(why, '"waits"') > 0, 'its text')
  call check(reservationWhy(client, limit, why, job='calls.3') == SLUICE_OK, 'why of the job')
  call check(index(why, '"calls.3"') > 0, 'its name')
  request%write_bytes_per_s = 43000000
  call check(addReservationAsync(client, request, limit, id) == SLUICE_ERROR_DOES_NOT_FIT, 'too much')
  call check(reservationRefusal(refusal) == SLUICE_OK, 'refusal')
  call check(sluice_text(refusal%bottleneck) == 'fs', 'the target is named')
  call check(refusal%fits_now_ppm > 0 .and. refusal%fits_now_ppm < 1000000, 'what fits')
  call check(testReservation(client, 0_int64, 0) == SLUICE_ERROR_INVALID_ARGUMENT, 'no time limit')
  call check(reservationRefusal(refusal) == SLUICE_ERROR_NOT_FOUND, 'no refusal')
  call check(sluice_cancel_calls(client) == 0, 'nothing to cancel')
  call sluice_close_handle(client)
  print '(a)', 'ok'

contains

  subroutine check(holds, what)
    logical, intent(in) :: holds
    character(len=*), intent(in) :: what
    if (holds) return
    write (error_unit, '(4a)') 'not so: ', what, ': ', sluice_error_message()
    error stop 1
  end subroutine check
end program calls
