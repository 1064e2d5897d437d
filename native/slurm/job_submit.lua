-- Checks what a job asks of storage bandwidth, in slurmctld at its submission (job_submit/lua).
--
--   -L lustreqos:100           MB/s (10^6 bytes/s) of the whole job
--   --gres=qoslustre:100M      bytes/s of each node; suffixes are powers of 1024 in Slurm
--   --qos-bw=100MB/s:write     spank/sluice_spank.c; turned into the two above
--
-- Both resources are needed, and nodes x GRES must be 95 % of the licences or more: then the
-- nodes can move what the job has of the file system. 5 % is what 100M and 100 differ by (4.9 %).
--
-- slurmctld waits for this function with its locks held: it computes, and connects to nothing.

local LICENCE = "lustreqos"
local GRES = "qoslustre"
local BYTES_PER_LICENCE = 1000000
local NO_VALUE = 4294967294 -- NO_VAL of slurm.h: not given
local INFINITE = 4294967295

local RATE_UNITS = {
  ["B/s"] = 1, ["kB/s"] = 1e3, ["KB/s"] = 1e3, ["MB/s"] = 1e6, ["GB/s"] = 1e9, ["TB/s"] = 1e12,
  ["PB/s"] = 1e15, ["KiB/s"] = 2 ^ 10, ["MiB/s"] = 2 ^ 20, ["GiB/s"] = 2 ^ 30, ["TiB/s"] = 2 ^ 40,
  ["PiB/s"] = 2 ^ 50,
}
local SPAN_UNITS = { ms = 0.001, s = 1, min = 60, h = 3600 }
local COUNT_UNITS = { [""] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30, T = 2 ^ 40 }

-- "100 MB/s", rounded down, or with one digit where that would be a coarse figure.
local function show_rate(bytes)
  local mb = bytes / 1e6
  return string.format(mb < 100 and "%.1f MB/s" or "%.0f MB/s", mb)
end

-- The value of an option of the SPANK plug-in; nil if it was not given.
local function option(job, name)
  for _, item in pairs(job.spank_job_env or {}) do
    local found, value = string.match(item, "^([%w_]+)=(.*)$")
    if found == "SLUICE_QOS_" .. name or found == "SPANK_SLUICE_QOS_" .. name then return value end
  end
  return nil
end

local function with_unit(text, units)
  local number, unit = string.match(text, "^(%d+%.?%d*) *(%a[%a/]*)$")
  if not number or not units[unit] then return nil end
  return tonumber(number) * units[unit]
end

-- The bytes/s of --qos-bw, as what its target must give; nil if the value has another form.
local function rate_of_option(text)
  local rate, direction = string.match(text, "^([^:]+):?(%a*)$")
  local bytes = rate and with_unit(rate, RATE_UNITS)
  if not bytes or bytes < 1 then return nil end
  if direction == "read" or direction == "write" then return bytes end
  if direction == "" then return 2 * bytes end -- the rate for each of both directions
  return nil
end

-- The licences of a list such as "matlab:1,lustreqos:100"; 0 without them. Slurm's "a|b" (any one)
-- of 23.11 and newer has no fixed number: nil.
local function licences_of(list)
  if not list or list == "" then return 0 end
  local sum, counted = 0, string.find(list, LICENCE, 1, true)
  if counted and string.find(list, "|", 1, true) then return nil end
  for item in string.gmatch(list, "[^,;]+") do
    local name, count = string.match(item, "^%s*([%w_%-]+)[:=]?(%d*)%s*$")
    if name == LICENCE then sum = sum + (tonumber(count) or 1) end
  end
  return sum
end

-- The bytes/s of GRES in a list such as "gres:gpu:2,gres:qoslustre:100M"; 0 without it.
local function gres_of(list)
  local sum = 0
  for item in string.gmatch(list or "", "[^,]+") do
    local name, number, unit = string.match(item, "^g?r?e?s?[:/]?([%w_]+)[:=](%d+)([KMGT]?)$")
    if name == GRES then sum = sum + tonumber(number) * COUNT_UNITS[unit] end
  end
  return sum
end

local function given(number)
  return number and number ~= NO_VALUE and number ~= INFINITE and number > 0
end

local function refuse(form, ...)
  slurm.log_user("sluice: " .. form, ...)
  return slurm.ERROR
end

-- Checks --qos-time against the time limit, which is in minutes.
local function check_time(job)
  local text = option(job, "TIME")
  local seconds = text and with_unit(text, SPAN_UNITS)
  if text and not seconds then
    return refuse("--qos-time: \"%s\" is not a span of time such as 90s, 10min or 2h", text)
  end
  if seconds and given(job.time_limit) and seconds > job.time_limit * 60 then
    return refuse("--qos-time: \"%s\" is longer than the job's time limit of %d min", text,
      job.time_limit)
  end
  return slurm.SUCCESS
end

-- Checks that the job has both resources and that its nodes can move what its licences are for.
local function check_resources(licences, gres, nodes)
  if licences == 0 and gres == 0 then return slurm.SUCCESS end
  if licences == 0 then
    return refuse("--gres=%s without licences; add -L %s:MB/s of the whole job, such as -L %s:%d",
      GRES, LICENCE, LICENCE, math.floor(nodes * gres / BYTES_PER_LICENCE))
  end
  local wanted = licences * BYTES_PER_LICENCE
  local each = math.ceil(licences / nodes)
  if gres == 0 then
    return refuse("-L %s:%d without GRES; add --gres=%s:%dM, the rate of each node", LICENCE,
      licences, GRES, each)
  end
  if nodes * gres < 0.95 * wanted then
    return refuse("%d node%s x --gres=%s is %s, but -L %s:%d is %s; ask for --gres=%s:%dM "
      .. "or more on each node, or for at most %d licences", nodes, nodes == 1 and "" or "s", GRES,
      show_rate(nodes * gres), LICENCE, licences, show_rate(wanted), GRES, each,
      math.floor(nodes * gres / BYTES_PER_LICENCE))
  end
  return slurm.SUCCESS
end

-- Gives a job with --qos-bw the licences and the GRES for it, or checks those that it has.
local function apply_rate(job, licences, gres, nodes)
  local text = option(job, "BW")
  if not text then
    for _, name in ipairs({ "TIME", "PATH", "PHASES" }) do
      if option(job, name) then
        refuse("--qos-%s needs --qos-bw=RATE, such as --qos-bw=1GB/s", string.lower(name))
        return nil
      end
    end
    return licences, gres
  end
  local bytes = rate_of_option(text)
  if not bytes then
    refuse("--qos-bw: \"%s\" is not a rate above zero such as 500MB/s or 1GB/s:write", text)
    return nil
  end
  local needed = math.ceil(bytes / BYTES_PER_LICENCE)
  if licences == 0 then
    local item = string.format("%s:%d", LICENCE, needed)
    job.licenses = job.licenses and job.licenses ~= "" and job.licenses .. "," .. item or item
    licences = needed
  elseif licences < 0.95 * needed then
    refuse("--qos-bw=%s needs %d licences, but -L %s:%d is %s; leave -L out", text, needed,
      LICENCE, licences, show_rate(licences * BYTES_PER_LICENCE))
    return nil
  end
  if gres == 0 then
    gres = math.ceil(licences * BYTES_PER_LICENCE / nodes) -- licences are whole MB/s
    local item = string.format("gres:%s:%.0f", GRES, gres)
    local others = job.tres_per_node
    job.tres_per_node = others and others ~= "" and others .. "," .. item or item
  end
  return licences, gres
end

function slurm_job_submit(job, partitions, uid)
  -- Without -N the number of nodes is Slurm's choice, 1 or more: it is checked for 1.
  local nodes = given(job.min_nodes) and job.min_nodes or 1
  local licences, gres = licences_of(job.licenses), gres_of(job.tres_per_node)
  if not licences then
    return refuse("-L \"%s\": %s cannot be one of several alternatives", job.licenses, LICENCE)
  end
  if check_time(job) ~= slurm.SUCCESS then return slurm.ERROR end
  licences, gres = apply_rate(job, licences, gres, nodes)
  if not licences then return slurm.ERROR end
  return check_resources(licences, gres, nodes)
end

-- What the reservation of a waiting job was made for may not be changed by its user, who could
-- otherwise give up the licences and keep the reservation. slurmctld passes each "scontrol update"
-- through here, with the changed values alone in job.
function slurm_job_modify(job, record, partitions, uid)
  local has_rate = option(record, "BW") or string.find(record.licenses or "", LICENCE, 1, true)
  if uid == 0 or uid ~= record.user_id or not has_rate then return slurm.SUCCESS end
  if job.licenses or job.tres_per_node or job.burst_buffer then
    return refuse("licences, GRES and burst buffer of a job with reserved bandwidth cannot be "
      .. "changed; cancel the job and submit it again")
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
