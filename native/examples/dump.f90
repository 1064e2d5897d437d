! dump DIRECTORY: writes DIRECTORY/dump within a reservation.
program dump
  use, intrinsic :: iso_fortran_env, only: error_unit, int64
  use sluice
  implicit none
  type(sluice_handle) :: client
  type(sluice_request) :: request
  integer(int64) :: id
  integer :: status, unit
  character(len=4096) :: directory, job
  real(8) :: state(131072)

  call get_command_argument(1, directory)
  call get_environment_variable('SLURM_JOB_ID', job)
  state = 0
  id = 0
  request%write_bytes_per_s = 1000000
  request%duration_ns = 10 * SLUICE_SECOND
  request%claim_window_ns = 30 * SLUICE_SECOND

  status = sluice_open_environment(client)
  if (status == SLUICE_OK) status = addReservationSync(client, request, 120000, id, job=job)
  if (status /= SLUICE_OK) write (error_unit, '(3a)') 'dump: ', sluice_error_message(), &
       '; going on without reservations'

  open (newunit=unit, file=trim(directory) // '/dump', form='unformatted', access='stream', status='replace')
  write (unit) state
  close (unit)

  if (status == SLUICE_OK) then
     status = finishReservation(client, id, 60000)
     print '(a)', 'dump: reserved'
  else
     if (id /= 0) status = removeReservation(client, id, 60000)
     print '(a)', 'dump: best effort'
  end if
  call sluice_close_handle(client)
end program dump
