-- Checks what a job asks of storage bandwidth, in slurmctld at its submission (job_submit/lua).
--
--   -L lustreqos:100           MB/s (10^6 bytes/s) of the whole job
--   --gres=qoslustre:100M      bytes/s of each node; suffixes are powers of 1024 in Slurm
--   --qos-bw=100MB/s:write     native/spank/sluice_spank.c; turned into the two above, and
--                              into the word "sluice:bw=..." of the job's AdminComment
--
-- Both resources are needed, and nodes x GRES must be 95 % of the licences or more: then the
-- nodes can move what the job has of the file system. 5 % is what 100M and 100 differ by (4.9 %).
-- An array is checked as one task of it, a heterogeneous job by its components, each for itself.
--
-- slurmctld waits for this function with its locks held: it computes, and connects to nothing.
-- docs/SLURM.md describes its installation.

-- Settings.
local LICENCE = "lustreqos"
local GRES = "qoslustre"
local BYTES_PER_LICENCE = 1000000
-- true: a job with reserved bandwidth starts when its reservation can (burst_buffer.lua). Needs
-- BurstBufferType=burst_buffer/lua in slurm.conf.
local GATE = false

local NO_VALUE = 4294967294 -- NO_VAL of slurm.h: not given
local INFINITE = 4294967295
-- slurmctld keeps and sends it with each job. 64 phases need 7 KB.
local ADMIN_COMMENT_BYTES_MAX = 16384

local LICENCES_MAX = 2 ^ 32 -- Slurm's are 32 bits wide; more are refused by it
local RATE_MAX = 2 ^ 52 -- 4.5 PB/s: Lua's numbers count bytes exactly up to here

local RATE_UNITS = {
  ["B/s"] = 1, ["kB/s"] = 1e3, ["KB/s"] = 1e3, ["MB/s"] = 1e6, ["GB/s"] = 1e9, ["TB/s"] = 1e12,
  ["PB/s"] = 1e15, ["KiB/s"] = 2 ^ 10, ["MiB/s"] = 2 ^ 20, ["GiB/s"] = 2 ^ 30, ["TiB/s"] = 2 ^ 40,
  ["PiB/s"] = 2 ^ 50,
}
local SPAN_UNITS = { ms = 0.001, s = 1, min = 60, h = 3600 }
local COUNT_UNITS = {
  [""] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30, T = 2 ^ 40,
  k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30, t = 2 ^ 40,
}

-- "100 MB/s", or with one digit where that would be a coarse figure.
local function show_rate(bytes)
  local mb = bytes / 1e6
  return string.format(mb < 100 and "%.1f MB/s" or "%.0f MB/s", mb)
end

local function is_given(number)
  return number and number ~= NO_VALUE and number ~= INFINITE and number > 0
end

-- Tells the user why the job is refused, on the terminal of srun, sbatch and salloc.
local function refuse(code, form, ...)
  slurm.log_user("%s", "sluice: " .. string.format(form, ...))
  return code
end

local function refuse_request(form, ...)
  return refuse(slurm.ESLURM_INVALID_LICENSES or slurm.ERROR, form, ...)
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
  local rate, colon, direction = string.match(text, "^([^:]+)(:?)(%a*)$")
  local bytes = rate and with_unit(rate, RATE_UNITS)
  if not bytes or bytes < 1 or bytes > RATE_MAX then return nil end
  if direction == "read" or direction == "write" then return bytes end
  if colon == "" and direction == "" then return 2 * bytes end -- the rate for each of both
  return nil
end

-- The licences of a list such as "matlab:1,lustreqos:100"; 0 without them. Slurm's "a|b" (any one)
-- of 23.11 and newer has no fixed number: nil.
local function licences_of(list)
  if not list or list == "" then return 0 end
  local sum = 0
  for item in string.gmatch(list, "[^,;|]+") do
    local name, count = string.match(item, "^%s*([^:=@%s]+)[^:=]*[:=]?(%d*)%s*$")
    if name == LICENCE then
      if string.find(list, "|", 1, true) then return nil end
      sum = sum + math.min(tonumber(count) or 1, LICENCES_MAX)
    end
  end
  return sum
end

-- The bytes/s of GRES in a list such as "gres:gpu:2,gres:qoslustre:100M"; 0 without it.
local function gres_of(list)
  local sum = 0
  for item in string.gmatch(list or "", "[^,]+") do
    local rest = string.gsub(item, "^gres[:/]", "")
    local name, count = string.match(rest, "^([%w_%-]+)[:=]?(%w*)$")
    if name == GRES then
      local number, unit = string.match(count, "^(%d+)([KMGTkmgt]?)$")
      sum = sum + (number and tonumber(number) * COUNT_UNITS[unit] or 1)
    end
  end
  return sum
end

-- Appends an item to a list with commas that may be empty.
local function with_item(list, item)
  return list and list ~= "" and list .. "," .. item or item
end

-- Checks --qos-time against the time limit, which is in minutes.
local function check_time(job)
  local text = option(job, "TIME")
  local seconds = text and with_unit(text, SPAN_UNITS)
  if text and (not seconds or seconds < 1) then
    return refuse_request("--qos-time: \"%s\" is not a span of 1s or more such as 90s, 10min or 2h",
      text)
  end
  if seconds and is_given(job.time_limit) and seconds > job.time_limit * 60 then
    return refuse_request("--qos-time: \"%s\" is longer than the job's time limit of %d min", text,
      job.time_limit)
  end
  return slurm.SUCCESS
end

-- Checks that the job has both resources and that its nodes can move what its licences are for.
local function check_resources(licences, gres, nodes)
  if licences == 0 and gres == 0 then return slurm.SUCCESS end
  if licences == 0 then
    return refuse_request("--gres=%s without licences; add -L %s:MB/s of the whole job, such as "
      .. "-L %s:%d", GRES, LICENCE, LICENCE,
      math.max(1, math.floor(nodes * gres / BYTES_PER_LICENCE)))
  end
  local wanted = licences * BYTES_PER_LICENCE
  local each = math.ceil(licences / nodes)
  if gres == 0 then
    return refuse_request("-L %s:%d without GRES; add --gres=%s:%dM, the rate of each node",
      LICENCE, licences, GRES, each)
  end
  if nodes * gres < 0.95 * wanted then
    return refuse_request("%d node%s x --gres=%s is %s, but -L %s:%d is %s; ask for --gres=%s:%dM "
      .. "or more on each node, or for at most %d licences", nodes, nodes == 1 and "" or "s", GRES,
      show_rate(nodes * gres), LICENCE, licences, show_rate(wanted), GRES, each,
      math.floor(nodes * gres / (0.95 * BYTES_PER_LICENCE)))
  end
  return slurm.SUCCESS
end

-- Gives a job with --qos-bw the licences and the GRES for it, or checks those that it has. nil: the
-- job is refused.
local function apply_rate(job, licences, gres, nodes)
  local text = option(job, "BW")
  if not text then
    for _, name in ipairs({ "TIME", "PATH", "PHASES" }) do
      if option(job, name) then
        refuse_request("--qos-%s needs --qos-bw=RATE, such as --qos-bw=1GB/s", string.lower(name))
        return nil
      end
    end
    return licences, gres
  end
  local bytes = rate_of_option(text)
  if not bytes then
    refuse_request("--qos-bw: \"%s\" is not a rate above zero such as 500MB/s or 1GB/s:write", text)
    return nil
  end
  local needed = math.ceil(bytes / BYTES_PER_LICENCE)
  if licences == 0 then
    job.licenses = with_item(job.licenses, string.format("%s:%.0f", LICENCE, needed))
    licences = needed
  elseif licences < 0.95 * needed then
    refuse_request("--qos-bw=%s needs %.0f licences, but -L %s:%d is %s; leave -L out", text,
      needed, LICENCE, licences, show_rate(licences * BYTES_PER_LICENCE))
    return nil
  end
  if gres == 0 then
    gres = math.ceil(licences * BYTES_PER_LICENCE / nodes) -- licences are whole MB/s
    job.tres_per_node = with_item(job.tres_per_node, string.format("gres:%s:%.0f", GRES, gres))
  end
  return licences, gres
end

local function percent_encode(text)
  return (string.gsub(text, "[^A-Za-z0-9._/:%-]", function(byte)
    return string.format("%%%02X", string.byte(byte))
  end))
end

-- "sluice:bw=1GB/s:write;time=10min", one word without blanks; nil without --qos-bw.
local function request_word(job)
  local parts = {}
  for _, name in ipairs({ "BW", "TIME", "PATH", "PHASES" }) do
    local value = option(job, name)
    if value then
      parts[#parts + 1] = string.lower(name) .. "=" .. percent_encode(value)
    end
  end
  return parts[1] and "sluice:" .. table.concat(parts, ";") or nil
end

-- Writes the request into the job's AdminComment, for `sluice slurm`. Only job_submit and operators
-- write words that begin with "sluice:": one that the submission had is removed.
local function write_request(job)
  local given, words = job.admin_comment, {}
  for word in string.gmatch(given or "", "%S+") do
    if string.sub(word, 1, 7) ~= "sluice:" then words[#words + 1] = word end
  end
  words[#words + 1] = request_word(job)
  local comment = table.concat(words, " ")
  if #comment > ADMIN_COMMENT_BYTES_MAX then
    return refuse_request("--qos-path and --qos-phases are %d bytes in the job's AdminComment, "
      .. "which holds %d; shorten them by %d bytes, or reserve with `sluice reserve add --phases`",
      #comment, ADMIN_COMMENT_BYTES_MAX, #comment - ADMIN_COMMENT_BYTES_MAX)
  end
  if given or comment ~= "" then job.admin_comment = comment end
  return slurm.SUCCESS
end

-- Has `sluice slurm start` called before the job starts: for a batch job by slurm_bb_pre_run, for srun and
-- salloc by PrologSlurmctld, as Slurm starts a job with a burst buffer at its next pass over the queue only.
local function set_gate(job)
  if not job.script then
    job.admin_comment = (job.admin_comment or "") .. " sluice-gate"
    return
  end
  local given = job.burst_buffer
  if given and string.find(given, "#BB_LUA", 1, true) then return end
  job.burst_buffer = given and given ~= "" and given .. "\n#BB_LUA" or "#BB_LUA"
end

function slurm_job_submit(job, partitions, uid)
  -- Without -N the number of nodes is Slurm's choice, 1 or more: it is checked for 1.
  local nodes = is_given(job.min_nodes) and job.min_nodes or 1
  local licences, gres = licences_of(job.licenses), gres_of(job.tres_per_node)
  if not licences then
    return refuse_request("-L \"%s\": %s cannot be one of several alternatives", job.licenses,
      LICENCE)
  end
  local result = check_time(job)
  if result ~= slurm.SUCCESS then return result end
  licences, gres = apply_rate(job, licences, gres, nodes)
  if not licences then return slurm.ESLURM_INVALID_LICENSES or slurm.ERROR end
  result = check_resources(licences, gres, nodes)
  if result ~= slurm.SUCCESS then return result end
  result = write_request(job)
  if result == slurm.SUCCESS and GATE and licences > 0 then set_gate(job) end
  return result
end

-- What the reservation of a waiting job was made for may not be changed by its user, who could
-- otherwise give up the licences and keep the reservation, or write a request that was not checked.
-- slurmctld passes each "scontrol update" through here, with the changed values alone in job.
function slurm_job_modify(job, record, partitions, uid)
  if uid == 0 or uid ~= record.user_id then return slurm.SUCCESS end -- Slurm judges other users
  local denied = slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  if job.admin_comment then
    return refuse(denied, "the admin comment of a job is its operators'")
  end
  local held = licences_of(record.licenses)
  local asked = licences_of(job.licenses) ~= 0 or gres_of(job.tres_per_node) ~= 0
  if held == 0 and not asked then return slurm.SUCCESS end
  if job.licenses or job.tres_per_node or job.burst_buffer then
    return refuse(denied, "licences, GRES and burst buffer of a job with reserved bandwidth cannot "
      .. "be changed; cancel the job and submit it again")
  end
  if is_given(job.min_nodes) then
    return check_resources(held, gres_of(record.tres_per_node), job.min_nodes)
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
